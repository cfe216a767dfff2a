package loop

import (
	"slices"
	"time"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// codeSilent is what executors say when whatever they work on does not answer.
const codeSilent = "api_unavailable"

// unansweredMost is the longest between two tries of a step that only reads, while
// nothing answers.
const unansweredMost = 5 * time.Second

// unanswered tells whether an attempt came to nothing for want of an answer.
func unanswered(out executor.Outcome) bool {
	return out.ErrorCode == codeSilent && (out.Class == operation.OutcomeTransient || out.Class == operation.OutcomeWaiting)
}

// silent shows that nothing answers, since the attempt that found it began. What the
// executor itself says of it goes before.
func (r *run) silent(s *stepState, began time.Time, out executor.Outcome) {
	if r.showsSilence(s) {
		return
	}
	r.progressed(s.Name, func(p *operation.Progress) {
		p.Blockers = r.obstacles.now(began.UTC(), []protocol.Blocker{{Code: codeSilent, Resource: "cluster", Rule: "api_server", Detail: out.Detail}})
	})
}

// answered takes back that nothing answers.
func (r *run) answered(s *stepState) {
	if !r.showsSilence(s) {
		return
	}
	r.progressed(s.Name, func(p *operation.Progress) {
		left := slices.DeleteFunc(slices.Clone(p.Blockers), isSilence)
		// Also when nothing is left: the next silence has a time of its own.
		if p.Blockers = r.obstacles.now(r.agent.now().UTC(), left); len(left) == 0 {
			p.Blockers = nil
		}
	})
}

func isSilence(b protocol.Blocker) bool { return b.Code == codeSilent }

func (r *run) showsSilence(s *stepState) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.progress.Step == s.Name && slices.ContainsFunc(r.progress.Blockers, isSilence)
}
