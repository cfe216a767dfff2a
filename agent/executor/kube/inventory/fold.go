package inventory

import "time"

// foldKey is what repeats of a fact are counted under.
type foldKey struct{ typ, uid string }

// fold is a fact that was told and is counted on until its window ends.
type fold struct {
	until  time.Time
	name   string
	count  int
	at     time.Time
	detail map[string]any
}

// fold tells a fact of the deployment that the pod belongs to: the first at
// once, with count 1, and those that come within the window after it in one
// event with their count. Pods of no deployment have nobody to be told of.
func (m *model) fold(typ string, p *pod, at time.Time, detail map[string]any) {
	w := m.deploymentOf(p)
	if m.quiet || w == nil || !w.reported {
		return
	}
	key := foldKey{typ, w.uid}
	if f := m.folds[key]; f != nil {
		f.count++
		f.at, f.detail = at, detail
		return
	}
	m.folds[key] = &fold{until: m.now().Add(m.opts.FoldWindow), name: w.key()}
	detail["count"] = 1
	m.tell(typ, kindDeployment, w.uid, w.key(), at, detail)
}

// unfold tells what has gathered in windows that are over. A fact that came
// again opens the next window, so a deployment that crashes for days is told of
// once in each.
func (m *model) unfold() {
	now := m.now()
	for key, f := range m.folds {
		switch {
		case now.Before(f.until):
		case f.count == 0:
			delete(m.folds, key)
		default:
			f.detail["count"] = f.count
			f.detail["window_seconds"] = int(m.opts.FoldWindow.Seconds())
			m.say(key.typ, kindDeployment, key.uid, f.name, f.at, f.detail)
			f.until, f.count = now.Add(m.opts.FoldWindow), 0
		}
	}
}
