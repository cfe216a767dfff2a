package cluster

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// A webhook that denies is heard to deny, whatever status it names; what the API server
// says by itself stays what it is.
func TestDenialsOfAnyCode(t *testing.T) {
	t.Parallel()
	hook := `admission webhook "guard.example.com" denied the request: not on a Monday`
	policy := `pods "web" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: since now`
	mutates := `policy 'tag' with binding 'all' denied request: no such key: app`
	for _, media := range []string{runtime.ContentTypeJSON, runtime.ContentTypeProtobuf} {
		for _, code := range []int{400, 401, 403, 404, 409, 410, 413, 422, 429, 500, 503, 504} {
			for _, c := range []struct {
				message string
				denied  bool
			}{{hook, true}, {policy, true}, {mutates, true}, {"pods \"web\" not found: so says the API server", false}, {`failed calling webhook "guard.example.com": EOF`, false}} {
				name := fmt.Sprintf("%d %s %s", code, media, c.message)
				s, cl := setup(t)
				s.answer = func(w http.ResponseWriter, _ *http.Request) {
					form, _ := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
					st := &metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Message: c.message,
						Reason: metav1.StatusReasonNotFound, Details: &metav1.StatusDetails{RetryAfterSeconds: 1, Causes: []metav1.StatusCause{{Type: "DisruptionBudget", Message: "no"}}}}
					b, err := runtime.Encode(form.Serializer, st)
					if err != nil {
						t.Error(err)
					}
					w.Header().Set("Content-Type", media)
					w.WriteHeader(code)
					_, _ = w.Write(b)
				}
				_, err := cl.Client.CoreV1().Pods("ns").Get(t.Context(), "web", metav1.GetOptions{})
				var status apierrors.APIStatus
				if !errors.As(err, &status) || !strings.Contains(err.Error(), c.message) {
					t.Fatalf("%s: %v", name, err)
				}
				want := int32(code)
				if c.denied && code != http.StatusForbidden {
					want = http.StatusBadRequest
				}
				got := status.Status()
				if got.Code != want || c.denied && code != 400 && code != 403 && (got.Reason != metav1.StatusReasonBadRequest || got.Details != nil && len(got.Details.Causes) > 0) {
					t.Errorf("%s: %+v", name, got)
				}
			}
		}
	}
}

// A denial by admission tells who denied; nothing else does.
func TestDeniedBy(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{
		`admission webhook "guard.example.com" denied the request: not on a Monday`:                                             "webhook guard.example.com",
		`admission webhook "guard.example.com" denied the request without explanation`:                                          "webhook guard.example.com",
		`pods "web" is forbidden: ValidatingAdmissionPolicy 'freeze' with binding 'all' denied request: since now`:              "policy freeze",
		`policy 'pm' with binding 'all' denied request: no such key: app`:                                                       "policy pm",
		`pods "web" is forbidden: policy 'pm' with binding 'all' denied request: no such key: app`:                              "policy pm",
		`pods "web" is forbidden: a policy 'pm' with binding 'all' denied request`:                                              " ",
		`pods "web" is forbidden: User "x" cannot create resource "pods/eviction"`:                                              " ",
		`Internal error occurred: failed calling webhook "guard.example.com": EOF`:                                              " ",
		`pods "web" is forbidden: exceeded, as admission webhook "guard.example.com" denied the request: no, which nobody said`: " ",
	} {
		err := &apierrors.StatusError{ErrStatus: metav1.Status{Status: metav1.StatusFailure, Code: 403, Message: message}}
		kind, name := DeniedBy(fmt.Errorf("evict: %w", err))
		if kind+" "+name != want || AdmissionDenied(err) != (kind != "") {
			t.Errorf("%s: by %s %s", message, kind, name)
		}
	}
	if kind, name := DeniedBy(errors.New(`admission webhook "x" denied the request`)); kind != "" || name != "" {
		t.Errorf("no answer: by %s %s", kind, name)
	}
}

// An answer that breaks off is one that broke off.
func TestDenialThatBreaksOff(t *testing.T) {
	t.Parallel()
	s, c := setup(t)
	s.answer = func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", runtime.ContentTypeJSON)
		w.Header().Set("Content-Length", "1000")
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = w.Write([]byte(`{"kind":"Status"`))
	}
	if _, err := c.Client.CoreV1().Pods("ns").Get(t.Context(), "web", metav1.GetOptions{}); err == nil || apierrors.IsBadRequest(err) {
		t.Errorf("%v", err)
	}
}
