package inventory

import (
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"
)

// feed is what a reflector writes into: it strips objects to facts, keeps them
// by UID and tells the model how they change.
type feed[F fact] struct {
	m *model
	// strip reads an object; ok is false for one of which nothing is kept.
	strip func(obj any) (f F, ok bool)
	// apply is called under the model's lock for each change: was or is is nil
	// for what was not there and what is gone.
	apply func(was, is F)
	// listed is called after each list, the first and those after a break.
	listed func()

	have   map[string]F
	synced bool
}

func newFeed[F fact](m *model, strip func(obj any) (F, bool), apply func(was, is F), listed func()) *feed[F] {
	return &feed[F]{m: m, strip: strip, apply: apply, listed: listed, have: map[string]F{}}
}

// Transformer strips what is listed as it comes in.
func (f *feed[F]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		switch obj.(type) {
		case F, *ignored:
			return obj, nil
		}
		got, ok := f.strip(obj)
		if ok {
			return got, nil
		}
		o, is := obj.(metav1.Object)
		if !is {
			return nil, fmt.Errorf("strip %T: it is no object", obj)
		}
		return &ignored{headOf(o)}, nil
	}
}

// read returns the fact of an object, and whose it is.
func (f *feed[F]) read(obj any) (got F, h *head, err error) {
	x, err := f.Transformer()(obj)
	if err != nil {
		return got, nil, err
	}
	switch x := x.(type) {
	case F:
		return x, x.id(), nil
	case *ignored:
		return got, &x.head, nil
	}
	return got, nil, fmt.Errorf("read %T: it is no fact", x)
}

// Add takes an object that is new.
func (f *feed[F]) Add(obj any) error { return f.put(obj) }

// Update takes an object that changed.
func (f *feed[F]) Update(obj any) error { return f.put(obj) }

func (f *feed[F]) put(obj any) error {
	is, h, err := f.read(obj)
	if err != nil {
		return err
	}
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.tick(h.version)
	f.set(h.uid, is)
	f.m.signal()
	return nil
}

// Delete takes an object away. Its last state carries the resourceVersion of the
// deletion.
func (f *feed[F]) Delete(obj any) error {
	_, h, err := f.read(obj)
	if err != nil {
		return err
	}
	var none F
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.tick(h.version)
	f.set(h.uid, none)
	f.m.signal()
	return nil
}

// set brings the fact of the UID to what it is now.
func (f *feed[F]) set(uid string, is F) {
	var none F
	was := f.have[uid]
	if was == none && is == none {
		return
	}
	if is == none {
		delete(f.have, uid)
	} else {
		f.have[uid] = is
	}
	f.apply(was, is)
}

// Replace takes a whole list. What is gone goes first: an object that was made
// again under its name is another one.
func (f *feed[F]) Replace(list []any, version string) error {
	var none F
	now := make(map[string]F, len(list))
	for _, obj := range list {
		is, h, err := f.read(obj)
		if err != nil {
			return err
		}
		if is != none {
			now[h.uid] = is
		}
	}
	f.m.mu.Lock()
	f.m.tick(number(version))
	quiet := f.m.quiet
	f.m.quiet = quiet || !f.synced
	for uid := range f.have {
		if now[uid] == none {
			f.set(uid, none)
		}
	}
	for uid, is := range now {
		f.set(uid, is)
	}
	f.m.quiet, f.synced = quiet, true
	f.m.signal()
	f.m.mu.Unlock()
	if f.listed != nil {
		f.listed()
	}
	return nil
}

// leave takes back all that was told: the API is served no more.
func (f *feed[F]) leave() {
	var none F
	f.m.mu.Lock()
	defer f.m.mu.Unlock()
	f.m.tick(0)
	for uid := range f.have {
		f.set(uid, none)
	}
	f.synced = false
	f.m.signal()
}

// Resync does nothing: nothing is ever lost between feed and model.
func (f *feed[F]) Resync() error { return nil }
