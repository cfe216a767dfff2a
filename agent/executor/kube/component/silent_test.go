package component

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	batchv1 "k8s.io/api/batch/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/cluster/clustertest"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

// TestServerThatHangs: an API server that hangs leaves the watches of a Job silent.
// The step that waits for its answer says so.
func TestServerThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := setup(t)
		s.put(t, s.assignment(1), upgradeOf, answer.Answer{}, "running")
		s.reply = func(j *batchv1.Job) (answer.Answer, string) {
			t.Errorf("Job %s was made", j.Name)
			return answer.Answer{}, ""
		}
		var server clustertest.Server
		s.Pulse = server.Pulse()
		ctx, cancel := context.WithCancel(t.Context())
		task := s.task(2, 1)
		task.Blocked = server.Blocked
		over := make(chan executor.Outcome, 1)
		go func() { over <- s.upgrade(ctx, task) }()
		server.Silence(t)
		server.Hang(true)
		time.Sleep(clustertest.Missed)
		synctest.Wait()
		if len(server.Shown()) != 1 {
			t.Errorf("a second time: %+v", server.Shown())
		}
		cancel()
		<-over
	})
}
