package node

import (
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	ktesting "k8s.io/client-go/testing"
)

// rehearsals makes the fake answer dry runs of patches, which it would carry out, with
// what answer says; nil: it takes them.
func rehearsals(client *fake.Clientset, answer func() error) {
	client.PrependReactor("patch", "nodes", func(a ktesting.Action) (bool, runtime.Object, error) {
		if !dryRuns(a) {
			return false, nil, nil
		}
		if answer != nil {
			if err := answer(); err != nil {
				return true, nil, err
			}
		}
		n, err := client.Tracker().Get(a.GetResource(), "", a.(ktesting.PatchAction).GetName())
		return true, n, err
	})
}

func dryRuns(a ktesting.Action) bool {
	p, is := a.(ktesting.PatchActionImpl)
	return is && slices.Equal(p.PatchOptions.DryRun, []string{metav1.DryRunAll})
}
