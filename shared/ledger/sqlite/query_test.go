package sqlite

import (
	"strings"
	"testing"
)

// TestPlans requires every read to seek in its index, in the index's order.
func TestPlans(t *testing.T) {
	t.Parallel()
	db := start(t, Options{})
	c := <-db.pool
	defer func() { db.pool <- c }()
	texts := map[string]string{dueSQL: "items_due", getSQL: "items_key", findSQL: "items_key", changesSQL: "INTEGER PRIMARY KEY", expiredSQL: "items_expires"}
	for s, sql := range statements {
		texts[sql] = "items_" + string(s.index)
		if s.index == "" {
			texts[sql] = "items_key"
		}
	}
	for sql, index := range texts {
		s, err := c.prepare("explain query plan " + sql)
		if err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		var plan []string
		for {
			ok, err := s.step()
			if err != nil {
				t.Fatal(err)
			}
			if !ok {
				break
			}
			plan = append(plan, s.textAt(3))
		}
		s.reset()
		text := strings.Join(plan, "; ")
		if !strings.Contains(text, index) || strings.Contains(text, "SCAN") || strings.Contains(text, "B-TREE") {
			t.Errorf("%s\nplan: %s", sql, text)
		}
		t.Log(text)
	}
}
