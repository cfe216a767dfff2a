package cluster

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"net/http"
	"regexp"
	"strconv"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/scheme"
)

// deniedByAdmission matches the words that the API server puts before what a webhook or
// a policy said, and the name of either. A MutatingAdmissionPolicy is no more than a
// policy in them.
var deniedByAdmission = regexp.MustCompile(`^admission webhook "([^"]+)" denied the request|(?:ValidatingAdmissionPolicy|^policy|: policy) '([^']+)' with binding '[^']*' denied request`)

// AdmissionDenied tells whether an answer is a denial by a webhook or a policy of admission.
func AdmissionDenied(err error) bool {
	kind, _ := DeniedBy(err)
	return kind != ""
}

// DeniedBy names who denied it: kind is "webhook" or "policy", and empty where the answer
// is no denial by admission. Nothing but the message tells.
func DeniedBy(err error) (kind, name string) {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return "", ""
	}
	switch m := deniedByAdmission.FindStringSubmatch(status.Status().Message); {
	case m == nil:
		return "", ""
	case m[1] != "":
		return "webhook", m[1]
	default:
		return "policy", m[2]
	}
}

// statusMost bounds what is read of an error: a Status is a few hundred bytes.
const statusMost = 1 << 20

// plainDenial makes a denial by admission a bad request. A webhook may deny with any
// status that it likes, and the API server passes it on: what is found would read as
// gone, what is denied as busy, as failed or as a word on the agent's credentials.
// https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/#response
func plainDenial(resp *http.Response) *http.Response {
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusForbidden:
		return resp
	}
	if resp.StatusCode < http.StatusBadRequest || resp.Body == nil {
		return resp
	}
	rest := io.Reader(resp.Body)
	body, err := io.ReadAll(io.LimitReader(resp.Body, statusMost))
	if err != nil {
		rest = broken{err} // whoever reads on meets it again
	} else if denial := denialOf(body, resp.Header.Get("Content-Type")); denial != nil {
		body = denial
		resp.StatusCode, resp.Status = http.StatusBadRequest, "400 Bad Request"
		resp.Header.Del("Retry-After")
		resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
		resp.ContentLength = int64(len(body))
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.MultiReader(bytes.NewReader(body), rest), resp.Body}
	return resp
}

// denialOf is the body of an answer that says no more than that it was denied, in the
// form that it came in; nil: it is none.
func denialOf(body []byte, contentType string) []byte {
	media, _, err := mime.ParseMediaType(contentType)
	if err != nil {
		return nil
	}
	form, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), media)
	if !ok {
		return nil
	}
	o, _, err := form.Serializer.Decode(body, nil, nil)
	if err != nil {
		return nil
	}
	status, ok := o.(*metav1.Status)
	if !ok || !deniedByAdmission.MatchString(status.Message) {
		return nil
	}
	status.Code, status.Reason, status.Details = http.StatusBadRequest, metav1.StatusReasonBadRequest, nil
	b, err := runtime.Encode(form.Serializer, status)
	if err != nil {
		return nil
	}
	return b
}

// broken is a reader that breaks off.
type broken struct{ err error }

func (f broken) Read([]byte) (int, error) { return 0, f.err }
