package serve

import (
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// bench is a keeper on a cluster that knows its token.
type bench struct {
	*keeper
	t        *testing.T
	client   *fake.Clientset
	node     string // that the token is bound to
	uid      string
	asked    int
	now      time.Time
	log      strings.Builder
	noOwners bool // the cluster lets it name no owner in an update
}

func newBench(t *testing.T) *bench {
	b := &bench{t: t, client: fake.NewClientset(), node: "gpu-1", uid: "uid-1", now: time.Date(2026, 3, 4, 5, 6, 7, 0, time.UTC)}
	b.keeper = &keeper{Options: Options{Client: b.client, Namespace: "ops", Node: "gpu-1", Log: slog.New(slog.NewTextHandler(&b.log, nil)), Now: func() time.Time { return b.now }}}
	b.client.PrependReactor("create", "selfsubjectreviews", func(k8stesting.Action) (bool, runtime.Object, error) {
		b.asked++
		r := &authenticationv1.SelfSubjectReview{}
		if b.node == "away" {
			return true, nil, errors.New("away")
		}
		if b.node != "" {
			r.Status.UserInfo.Extra = map[string]authenticationv1.ExtraValue{claimNode: {b.node}, claimNodeUID: {b.uid}}
		}
		return true, r, nil
	})
	b.client.PrependReactor("update", "configmaps", func(a k8stesting.Action) (bool, runtime.Object, error) {
		o, err := b.client.Tracker().Get(a.GetResource(), "ops", report.Name("gpu-1"))
		if err != nil {
			return true, nil, err
		}
		was, is := o.(metav1.Object).GetOwnerReferences(), a.(k8stesting.UpdateAction).GetObject().(metav1.Object).GetOwnerReferences()
		if b.noOwners && len(was) != len(is) {
			return true, nil, apierrors.NewForbidden(schema.GroupResource{Resource: "configmaps"}, "x", errors.New("cannot set an ownerRef on a resource you can't delete"))
		}
		return false, nil, nil
	})
	return b
}

// put writes once and returns the owner's UID.
func (b *bench) put() string {
	b.t.Helper()
	if err := b.write(b.t.Context(), report.Host{Node: "gpu-1", Source: report.SourceRecorded, At: b.now, Devices: []report.Device{}}); err != nil {
		b.t.Fatal(err)
	}
	o, err := b.client.CoreV1().ConfigMaps("ops").Get(b.t.Context(), report.Name("gpu-1"), metav1.GetOptions{})
	if err != nil {
		b.t.Fatal(err)
	}
	if len(o.OwnerReferences) == 0 {
		return ""
	}
	r := o.OwnerReferences[0]
	if len(o.OwnerReferences) != 1 || r.APIVersion != "v1" || r.Kind != "Node" || r.Name != "gpu-1" || r.Controller != nil || r.BlockOwnerDeletion != nil {
		b.t.Errorf("owners %+v", o.OwnerReferences)
	}
	return string(r.UID)
}

func (b *bench) owned(what, want string) {
	b.t.Helper()
	if got := b.put(); got != want {
		b.t.Errorf("%s: owned by %q, want %q", what, got, want)
	}
}

func (b *bench) drop() {
	b.t.Helper()
	if err := b.client.CoreV1().ConfigMaps("ops").Delete(b.t.Context(), report.Name("gpu-1"), metav1.DeleteOptions{}); err != nil {
		b.t.Fatal(err)
	}
}

// The node owns its report as soon as the token tells its UID, and it is asked no
// more then.
func TestNodeOwnsItsReport(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ node, want string }{
		"bound to the node":   {"gpu-1", "uid-1"},
		"bound to another":    {"gpu-2", ""},
		"an older API server": {"", ""},
		"the server is away":  {"away", ""},
	} {
		b := newBench(t)
		b.node = c.node
		b.owned(name, c.want)
		b.owned(name+", again", c.want)
		if asked := map[bool]int{true: 1, false: 2}[c.want != ""]; b.asked != asked {
			t.Errorf("%s: asked %d times, want %d", name, b.asked, asked)
		}
		if n := strings.Count(b.log.String(), "outlive its node"); (n == 1) != (c.want == "") {
			t.Errorf("%s: told %d times: %s", name, n, b.log.String())
		}
		b.node = "gpu-1"
		b.owned(name+", then with a token that tells", "uid-1")
	}
}

// A node that was made anew under its name takes the report of the one before with
// it. Until the token tells of the new one the report has no owner: under the old
// one it would be deleted again each time.
func TestNodeMadeAnew(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.owned("of the first", "uid-1")
	b.drop()
	b.owned("the token tells of the one before", "")
	b.drop()
	b.owned("and still", "")
	b.uid = "uid-2"
	b.owned("of the second", "uid-2")
	b.drop() // by a person
	b.owned("after a person deleted it", "")
	b.now = b.now.Add(shunFor + time.Second)
	b.owned("and later", "uid-2")
}

// Where only who may delete an object may give it an owner, the report is kept all
// the same.
func TestOwnersAreRefused(t *testing.T) {
	t.Parallel()
	b := newBench(t)
	b.noOwners, b.node = true, ""
	b.owned("without", "")
	b.node = "gpu-1"
	b.owned("refused", "")
	b.noOwners = false
	b.owned("allowed", "uid-1")
}
