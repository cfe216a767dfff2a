package dynamo

import (
	"encoding/base64"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opsplane/opsplane/shared/ledger"
)

// twoItems answers for a table with two due items, of which one was written by a
// newer engine.
func twoItems(r request) (*http.Response, error) {
	at := storedTime(time.UnixMilli(1000))
	hint := func(pk string) string {
		return fmt.Sprintf(`{"pk":{"S":%q},"sk":{"S":"s"},"dp":{"S":"due#0"},"ds":{"S":%q}}`, pk, at)
	}
	item := func(pk string, format byte) string {
		return fmt.Sprintf(`{"pk":{"S":%q},"sk":{"S":"s"},"v":{"N":"1"},"dp":{"S":"due#0"},"ds":{"S":%q},"d":{"B":%q}}`,
			pk, at, base64.StdEncoding.EncodeToString([]byte{format, 'x'}))
	}
	switch {
	case r.Op == "BatchGetItem":
		return respond(http.StatusOK, `{"Responses":{"table":[`+item("newer", 200)+","+item("ours", formatRaw)+`]}}`)
	case strings.Contains(r.Raw, `"due#0"`):
		return respond(http.StatusOK, `{"Items":[`+hint("newer")+","+hint("ours")+`]}`)
	}
	return respond(http.StatusOK, `{"Items":[]}`)
}

// TestDueItemThatCannotBeRead: it stops nobody's deadline but its own. Who asks
// for the item itself is told.
func TestDueItemThatCannotBeRead(t *testing.T) {
	t.Parallel()
	db, _ := scripted(t, twoItems)
	due, err := db.Due(t.Context(), time.UnixMilli(2000), 10)
	if err != nil || len(due) != 1 || due[0].PK != "ours" {
		t.Errorf("due %+v, %v", due, err)
	}
	if got, err := db.GetMany(t.Context(), []ledger.Key{{PK: "newer", SK: "s"}, {PK: "ours", SK: "s"}}); !errors.Is(err, errGarbled) {
		t.Errorf("got %+v, %v", got, err)
	}
}
