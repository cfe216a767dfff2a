package component

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/opsplane/opsplane/agent/executor"
	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
	"github.com/opsplane/opsplane/shared/protocol"
)

// observe describes the component at the end of the operation.
func (u *upgrader) observe(ctx context.Context, a *protocol.Assignment, end *executor.Ending) {
	p, c, bad := u.read(a.Payload)
	if bad != nil {
		end.Message = bad.Detail
		if s, err := u.look(ctx, a.Operation); err == nil {
			leave(s, a, p, end)
		}
		return
	}
	list, err := u.parts(ctx, c)
	if err != nil {
		end.Message = "the component could not be read: " + err.Error()
		return
	}
	version, slow := versionOf(list), unready(list)
	end.Message = fmt.Sprintf("%s is %s", p.Component, version)
	end.NotVerified = []string{"application readiness"}
	if labelled(list) {
		seen := protocol.Component{UID: p.Component, Name: p.Component, Version: version, Healthy: len(slow) == 0}
		for _, x := range list {
			seen.Revision = max(seen.Revision, x.revision)
		}
		end.Observed = &protocol.Inventory{Components: []protocol.Component{seen}}
		if !executor.StepUnknown(a, "upgrade") {
			end.Verified = append(end.Verified, fmt.Sprintf("%s reports version %s", p.Component, version))
			if len(slow) == 0 {
				end.Verified = append(end.Verified, p.Component+" is healthy")
			}
		}
	}
	s, err := u.look(ctx, a.Operation)
	if err != nil {
		return // what Helm said stays unknown
	}
	if leave(s, a, p, end) {
		return
	}
	said, j := s.settled(a.Operation, a.Run)
	if j == nil {
		return
	}
	end.Details, _ = json.Marshal(map[string]any{"helm": said}) // plain values always marshal
	switch {
	case said.Code == "" && said.Own != nil:
		end.Verified = append(end.Verified, fmt.Sprintf("Helm deployed revision %d of release %s", said.Own.Revision, c.Release))
	case said.RolledBack:
		end.Verified = append(end.Verified, fmt.Sprintf("Helm rolled release %s back to version %s", c.Release, said.From))
	case said.Own != nil && said.Own.Status == "failed":
		end.Leave(a, "upgrade", fmt.Sprintf("release %s is left at revision %d, which failed", c.Release, said.Own.Revision))
	case said.Own != nil && strings.HasPrefix(said.Own.Status, "pending-"):
		end.Leave(a, "upgrade", fmt.Sprintf("release %s is left at revision %d, which is %s: no upgrade begins before it is rolled back", c.Release, said.Own.Revision, said.Own.Status))
	}
	if said.Own != nil && len(slow) > 0 {
		end.Leave(a, "verify", fmt.Sprintf("%s is not healthy: %s", p.Component, strings.Join(slow, ", ")))
	}
}

// leave tells of an upgrade that goes on after the operation.
func leave(s scene, a *protocol.Assignment, p payload, end *executor.Ending) bool {
	job := ""
	if j := s.busy(answer.Upgrade); j != nil {
		job = j.Name
	} else if o := s.orphan(answer.Upgrade); o != nil {
		job = jobOf(o) + ", which was deleted; pod " + o.Name
	}
	if job == "" {
		return false
	}
	end.Leave(a, "upgrade", fmt.Sprintf("the upgrade of %s to %s has not ended (Job %s)", p.Component, p.Version, job))
	return true
}

// preview tells what is known without asking Helm: that would take a Job.
func (u *upgrader) preview(ctx context.Context, q protocol.PreviewRequest) ([]protocol.Blocker, error) {
	p, c, bad := u.read(q.Payload)
	list := []protocol.Blocker{}
	if bad != nil {
		return append(list, protocol.Blocker{Code: bad.ErrorCode, Resource: "component/" + p.Component, Rule: "configuration", Detail: bad.Detail}), nil
	}
	rctx, cancel := u.Read(ctx)
	defer cancel()
	name := u.config.account(c)
	_, err := u.Client.CoreV1().ServiceAccounts(u.Namespace).Get(rctx, name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		list = append(list, protocol.Blocker{Code: "account_missing", Resource: "serviceaccount/" + u.Namespace + "/" + name, Rule: "configuration",
			Detail: fmt.Sprintf("namespace %s has no service account %s, under which upgrades run", u.Namespace, name)})
	case err != nil:
		return nil, fmt.Errorf("preview the upgrade of %s: %w", p.Component, err)
	}
	switch b, err := u.another(ctx, &protocol.Assignment{Operation: q.ID}, c); {
	case err != nil:
		return nil, fmt.Errorf("preview the upgrade of %s: %w", p.Component, err)
	case b != nil:
		list = append(list, *b)
	}
	refused, err := u.foresee(ctx, q, p, c)
	if err != nil {
		return nil, fmt.Errorf("preview the upgrade of %s: %w", p.Component, err)
	}
	if refused != nil {
		list = append(list, *refused)
	}
	parts, err := u.parts(ctx, c)
	if err != nil {
		return nil, fmt.Errorf("preview the upgrade of %s: %w", p.Component, err)
	}
	if slow := unready(parts); len(slow) > 0 {
		list = append(list, protocol.Blocker{Code: "unhealthy", Resource: "component/" + p.Component, Rule: "workloads",
			Detail: fmt.Sprintf("%s is not healthy now: %s", p.Component, strings.Join(slow, ", "))})
	}
	return list, nil
}

// foresee tells what stands in the way of making the upgrade's Jobs, of which none is made
// for a question: a right that is missing, or who refuses them.
func (u *upgrader) foresee(ctx context.Context, q protocol.PreviewRequest, p payload, c Component) (*protocol.Blocker, error) {
	what := makeJobs.Attributes()
	what.Namespace = u.Namespace
	read, cancel := u.Read(ctx)
	defer cancel()
	switch has, err := u.Allowed(read, what); {
	case err != nil:
		return nil, err
	case !has:
		return makeJobs.Missing("component/" + p.Component), nil
	}
	a := &protocol.Assignment{Operation: q.ID, Run: 1, Generation: 1, Type: q.Type, Payload: q.Payload}
	return u.ForeseeJob(ctx, u.job(a, request{verb: answer.Preflight, component: c, version: p.Version, timeout: u.config.Timeout, attempt: 1}))
}
