package cluster

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/streaming"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	restwatch "k8s.io/client-go/rest/watch"
)

// forms are the media types in which the agent's clients read watches.
var forms = []string{runtime.ContentTypeProtobuf, runtime.ContentTypeJSON}

// writer writes events as an API server does in the form.
func writer(t *testing.T, form string, to io.Writer) *restwatch.Encoder {
	t.Helper()
	info, ok := runtime.SerializerInfoForMediaType(scheme.Codecs.SupportedMediaTypes(), form)
	if !ok {
		t.Fatalf("no %s", form)
	}
	version := corev1.SchemeGroupVersion
	return restwatch.NewEncoder(
		streaming.NewEncoder(info.StreamSerializer.NewFrameWriter(to), scheme.Codecs.EncoderForVersion(info.StreamSerializer.Serializer, version)),
		scheme.Codecs.EncoderForVersion(info.Serializer, version))
}

func event(typ watch.EventType) *watch.Event {
	if typ == watch.Error {
		return &watch.Event{Type: typ, Object: &metav1.Status{Status: metav1.StatusFailure, Code: http.StatusInternalServerError, Message: "BOOKMARK ADDED"}}
	}
	return &watch.Event{Type: typ, Object: &corev1.Pod{ObjectMeta: metav1.ObjectMeta{
		Name: "ADDED", ResourceVersion: "7", Annotations: map[string]string{"text": strings.Repeat("a line\n{\"type\":\"MODIFIED\"", 20)}}}}
}

// Each event's type is told once, however the bytes come.
func TestFrames(t *testing.T) {
	t.Parallel()
	sent := []watch.EventType{watch.Added, watch.Bookmark, watch.Modified, watch.Error, watch.Deleted, watch.Bookmark}
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			var all strings.Builder
			w := writer(t, form, &all)
			for _, typ := range sent {
				if err := w.Encode(event(typ)); err != nil {
					t.Fatal(err)
				}
			}
			for name, from := range map[string]io.Reader{
				"at once": strings.NewReader(all.String()), "by bytes": iotest.OneByteReader(strings.NewReader(all.String())),
				"by halves": iotest.HalfReader(strings.NewReader(all.String())),
			} {
				f := framesOf(http.Header{"Content-Type": {form + ";stream=watch"}})
				var told []watch.EventType
				for b := make([]byte, 1<<16); ; {
					n, err := from.Read(b)
					for _, typ := range f.take(b[:n]) {
						told = append(told, watch.EventType(typ))
					}
					if errors.Is(err, io.EOF) {
						break
					}
				}
				if !slices.Equal(told, sent) {
					t.Errorf("%s: %q", name, told)
				}
			}
		})
	}
	if got := framesOf(http.Header{"Content-Type": {"application/cbor-seq"}}).take([]byte(`{"type":"ADDED"`)); got != nil {
		t.Errorf("in a form that is not known: %q", got)
	}
}

// watching begins a watch of somebody's, with the clients that Open makes; the server
// hangs beside it. What send sends the client reads.
func watching(t *testing.T, form string, s *heart, others *http.Client, o metav1.ListOptions) (send func(watch.EventType), end func()) {
	t.Helper()
	cfg := &rest.Config{Host: "http://server/behind/it", Transport: others.Transport}
	read, write := io.Pipe()
	s.set(func(r *http.Request) (*http.Response, error) {
		if accept := r.Header.Get("Accept"); !strings.HasPrefix(accept, form) {
			t.Errorf("asked for %s", accept)
		}
		return &http.Response{StatusCode: http.StatusOK, Body: read, Request: r, Header: http.Header{"Content-Type": {form + ";stream=watch"}}}, nil
	})
	var w watch.Interface
	var err error
	if form == runtime.ContentTypeProtobuf {
		w, err = kubernetes.NewForConfigOrDie(inBinary(cfg)).CoreV1().Pods("").Watch(t.Context(), o)
	} else {
		w, err = dynamic.NewForConfigOrDie(cfg).Resource(corev1.SchemeGroupVersion.WithResource("pods")).Watch(t.Context(), o)
	}
	if err != nil {
		t.Fatal(err)
	}
	s.set(hangs)
	events := writer(t, form, write)
	send = func(typ watch.EventType) {
		t.Helper()
		if err := events.Encode(event(typ)); err != nil {
			t.Error(err)
		}
		if got := <-w.ResultChan(); got.Type != typ {
			t.Errorf("sent %s, read %+v", typ, got)
		}
		synctest.Wait()
	}
	return send, func() { _ = write.Close(); w.Stop() }
}

// A change that a watch brings is an answer as well: it comes out of etcd. A bookmark
// and an error come out of the API server's cache, and so does what a watch brings first.
func TestPulseHearsWatches(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s, others := beating(t)
				l := listening(t, p)
				send, end := watching(t, form, s, others, metav1.ListOptions{ResourceVersion: "6", AllowWatchBookmarks: true})
				defer end()
				time.Sleep(aged)
				for range 30 {
					send(watch.Modified)
					time.Sleep(2 * time.Second)
				}
				if n := s.count(); n != 1 {
					t.Errorf("asked %d times while the watch brought something", n-1)
				}
				for range 30 {
					send(watch.Bookmark)
					send(watch.Error)
					time.Sleep(time.Second)
				}
				if _, turns, u := l.now(); u == nil || turns != 1 {
					t.Errorf("bookmarks and errors alone: %v, %d turns", u, turns)
				}
				for i, typ := range []watch.EventType{watch.Modified, watch.Added, watch.Deleted} {
					send(typ)
					if _, turns, u := l.now(); u != nil || turns != 2*(i+1) {
						t.Errorf("%s: %v, %d turns", typ, u, turns)
					}
					time.Sleep(15 * time.Second)
				}
				end()
				synctest.Wait()
				if _, turns, u := l.now(); u == nil || turns != 7 {
					t.Errorf("the watch is over: %v, %d turns", u, turns)
				}
			})
		})
	}
}

// A watch begins with what the API server's cache holds.
func TestPulseOfWatchesThatBegin(t *testing.T) {
	t.Parallel()
	for _, form := range forms {
		t.Run(form, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				p, s, others := beating(t)
				l := listening(t, p)
				s.set(hangs)
				time.Sleep(20 * time.Second)
				all := true
				whole, endWhole := watching(t, form, s, others, metav1.ListOptions{ResourceVersion: "7", AllowWatchBookmarks: true,
					SendInitialEvents: &all, ResourceVersionMatch: metav1.ResourceVersionMatchNotOlderThan})
				defer endWhole()
				missed, endMissed := watching(t, form, s, others, metav1.ListOptions{ResourceVersion: "6"})
				defer endMissed()
				missed(watch.Modified)
				time.Sleep(2 * aged)
				whole(watch.Added)
				whole(watch.Bookmark)
				if _, turns, u := l.now(); u == nil || turns != 1 {
					t.Errorf("what they begin with: %v, %d turns", u, turns)
				}
				whole(watch.Modified)
				if _, turns, u := l.now(); u != nil || turns != 2 {
					t.Errorf("a change: %v, %d turns", u, turns)
				}
			})
		})
	}
}
