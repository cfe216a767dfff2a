package component

import (
	"context"
	"time"

	batchv1 "k8s.io/api/batch/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/shared/protocol"
)

// podlessEvery is how often what is said of Jobs without a pod is read.
const podlessEvery = 5 * time.Second

// podless reads beside a wait what the Job controller says of the Jobs that wait for a
// pod; nil: none does.
func (u *upgrader) podless(ctx context.Context, s scene) <-chan map[types.UID]protocol.Blocker {
	var jobs []*batchv1.Job
	for _, j := range s.jobs {
		if _, over := ended(j); !over && len(s.podsOf(j)) == 0 {
			jobs = append(jobs, j)
		}
	}
	if len(jobs) == 0 {
		return nil
	}
	said := make(chan map[types.UID]protocol.Blocker, 1)
	go func() {
		all := map[types.UID]protocol.Blocker{}
		for _, j := range jobs {
			if b := u.Podless(ctx, j); b != nil {
				all[j.UID] = *b
			}
		}
		said <- all
	}()
	return said
}
