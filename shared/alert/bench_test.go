package alert

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkJudge judges events by 1,000 rules over 40 event types, of which 25 look
// at each event and few match.
func BenchmarkJudge(b *testing.B) {
	var rules []*Compiled
	for i := range 1000 {
		c, err := Compile(Rule{Name: fmt.Sprint("r", i), On: []string{fmt.Sprint("x.t", i%40)}, GroupBy: map[string]string{"g": "event.subject.name"},
			When:  fmt.Sprintf(`event.severity != "critical" && event.subject.name.startsWith("n%d") && event.detail.?reason.orValue("") != "maintenance"`, i%100),
			Count: 3, Window: Duration(10 * time.Minute)}, ShippedID(fmt.Sprint("r", i)), 1)
		if err != nil {
			b.Fatal(err)
		}
		rules = append(rules, c)
	}
	s := NewStream(testStream, NewSet(rules, nil), Position{}, nil)
	n := int64(0)
	b.ReportAllocs()
	for b.Loop() {
		n++
		e := fact(time.Duration(n)*time.Millisecond, fmt.Sprint("x.t", n%40), fmt.Sprint("n", n*7%200), "reason", "KubeletNotReady")
		e.Sequence, e.Stream, e.Cluster = n, testStream, testStream
		s.Judge(NewVars(&e, nil), never)
		if n%500 == 0 {
			s.Take()
		}
	}
	b.ReportMetric(float64(s.Meter.Evaluated)/float64(n), "expressions/event")
}
