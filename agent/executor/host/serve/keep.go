package serve

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/opsplane/opsplane/agent/executor/host/report"
)

// What a pod's token says of the node that the pod was bound to, from Kubernetes
// 1.30 on (by default; always from 1.32).
// https://kubernetes.io/docs/reference/access-authn-authz/service-accounts-admin/#additional-metadata-in-pod-bound-tokens
const (
	claimNode    = "authentication.kubernetes.io/node-name"
	claimNodeUID = "authentication.kubernetes.io/node-uid"
)

// shunFor is how long a node is not named as the owner again after the ConfigMap
// went away under it: longer than a kubelet keeps a pod's token, an hour.
const shunFor = 2 * time.Hour

// keeper writes the report of one host.
type keeper struct {
	Options
	kept  bool      // the ConfigMap was there
	owner types.UID // the node's, as the token tells it; empty: not known
	told  bool      // that it is not known is in the log
	// shunned is the owner under which the ConfigMap went away. The node was made
	// anew under its name, and the token still tells of the one before: whatever
	// that owns is collected at once.
	shunned types.UID
	since   time.Time
}

// write makes the ConfigMap say h. Only the node's own program writes it; a
// conflict is another instance of it, during its upgrade, and the next round
// settles that.
func (k *keeper) write(ctx context.Context, h report.Host) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	maps := k.Client.CoreV1().ConfigMaps(k.Namespace)
	name, data := report.Name(k.Node), string(h.Data())
	have, err := maps.Get(ctx, name, metav1.GetOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("read configmap %s: %w", name, err)
	}
	gone := err != nil
	if gone && k.kept && k.owner != "" {
		k.shunned, k.since, k.owner = k.owner, k.Now(), ""
	}
	k.identify(ctx)
	if gone {
		_, err = maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: k.Namespace, Labels: labels(k.Node), OwnerReferences: k.owners()},
			Data:       map[string]string{report.Key: data},
		}, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("create configmap %s: %w", name, err)
		}
		k.kept = true
		return nil
	}
	k.kept = true
	if was, err := report.ParseHost([]byte(have.Data[report.Key])); err == nil && was.Node != k.Node {
		return fmt.Errorf("configmap %s speaks of node %s", name, was.Node)
	}
	have.Data = map[string]string{report.Key: data}
	if have.Labels == nil {
		have.Labels = map[string]string{}
	}
	for key, v := range labels(k.Node) {
		have.Labels[key] = v
	}
	was := have.OwnerReferences
	if k.owner != "" {
		have.OwnerReferences = k.owners()
	}
	_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	if apierrors.IsForbidden(err) && !slices.Equal(was, have.OwnerReferences) {
		// Where OwnerReferencesPermissionEnforcement is on, only who may delete an
		// object may give it another owner.
		// https://kubernetes.io/docs/reference/access-authn-authz/admission-controllers/#ownerreferencespermissionenforcement
		have.OwnerReferences = was
		_, err = maps.Update(ctx, have, metav1.UpdateOptions{})
	}
	if err != nil {
		return fmt.Errorf("update configmap %s: %w", name, err)
	}
	return nil
}

// identify asks the API server which node the token is bound to, until that is
// known. Without an answer the report is kept all the same, and nobody deletes it.
func (k *keeper) identify(ctx context.Context) {
	if k.owner != "" {
		return
	}
	r, err := k.Client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	var node, uid string
	if err == nil {
		node, uid = first(r.Status.UserInfo.Extra[claimNode]), first(r.Status.UserInfo.Extra[claimNodeUID])
	}
	switch {
	case err == nil && node == k.Node && uid != "":
		if types.UID(uid) != k.shunned || k.Now().Sub(k.since) > shunFor {
			k.owner, k.shunned = types.UID(uid), ""
		}
	case !k.told:
		k.told = true
		k.Log.Warn("the report will outlive its node: the token does not say that it is this node's", slog.String("token_node", node), slog.Any("err", err))
	}
}

func first(v authenticationv1.ExtraValue) string {
	if len(v) == 0 {
		return ""
	}
	return v[0]
}

// owners make the garbage collector delete the ConfigMap after its node.
// https://kubernetes.io/docs/concepts/architecture/garbage-collection/#owners-dependents
func (k *keeper) owners() []metav1.OwnerReference {
	if k.owner == "" {
		return nil
	}
	return []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: k.Node, UID: k.owner}}
}

func labels(node string) map[string]string {
	return map[string]string{report.Label: report.Hash(node), "app.kubernetes.io/managed-by": "opsplane-host"}
}
