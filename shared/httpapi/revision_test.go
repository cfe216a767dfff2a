package httpapi

import (
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/problem"
)

// Renewals change the record and not what is shown: a wait goes on through them,
// and the ETag that was shown stays good for a cancel.
func TestRenewalsKeepTheRevision(t *testing.T) {
	t.Parallel()
	p := setup(t)
	opID := p.create(p.node(p.cluster, "a"))
	path := "/v1/operations/" + opID
	renew := func(progress *operation.Progress) {
		p.apply(opID, operation.Renew{Agent: "agt", Generation: 1, Until: time.Now().Add(time.Minute), Progress: progress})
	}
	p.apply(opID, operation.Dispatch{})
	p.apply(opID, operation.Claim{Agent: "agt", Boot: "b", Until: time.Now().Add(time.Minute)})
	shown := p.do("viewer", "GET", path, nil).want(200)
	tag := shown.header.Get("ETag")
	done := make(chan answer)
	go func() { done <- p.do("viewer", "GET", path+"?wait=20s", nil, "If-None-Match: "+tag) }()
	for range 20 {
		renew(nil)
		p.do("viewer", "GET", path, nil).want(200) // time for the wait to look
	}
	select {
	case a := <-done:
		t.Fatalf("a renewal ended the wait: %s", a.raw)
	default:
	}
	if a := p.do("viewer", "GET", path, nil).want(200); a.header.Get("ETag") != tag || a.raw != shown.raw {
		t.Errorf("after renewals alone:\n%s\nwas\n%s", a.raw, shown.raw)
	}
	progress := &operation.Progress{Step: "cordon", Done: 1, Total: 2, Unit: "steps"}
	renew(progress)
	a := <-done
	if a.status != 200 || a.header.Get("ETag") == tag {
		t.Errorf("progress did not end the wait: %s", a.raw)
	}
	p.do("operator", "DELETE", path, nil, "If-Match: "+tag).problem(412, problem.PreconditionFailed)
	renew(progress) // nothing new
	renew(nil)
	p.do("operator", "DELETE", path, nil, "If-Match: "+a.header.Get("ETag")).want(202)
}
