package httpapi

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"

	"github.com/danielgtaylor/huma/v2"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// historyRoutes are what belongs to one operation: its journal, steps, commands
// and children.
func (a *API) historyRoutes() {
	get := func(name, summary string) huma.Operation {
		return huma.Operation{Method: http.MethodGet, Path: operationsPath + "/{id}/" + name, Summary: summary, Tags: []string{"operations"}}
	}
	register(a, get("journal", "List journal"), access{action: auth.Read}, a.listJournal)
	register(a, get("steps", "List steps"), access{action: auth.Read}, a.listSteps)
	register(a, get("commands", "List commands"), access{action: auth.Read}, a.listCommands)
	register(a, get("children", "List children"), access{action: auth.Read}, a.listChildren)
}

// ofOperation names one operation and a page.
type ofOperation struct {
	PageInput
	ID string `path:"id"`
}

// missing turns a store's "not found" into the problem.
func missing(err error, what, name string) error {
	if errors.Is(err, ledger.ErrNotFound) {
		return notFound(what, name)
	}
	return err
}

func (a *API) listJournal(ctx context.Context, rq *request, in *ofOperation) (*listOutput[operation.Entry], error) {
	if _, err := a.loadOperation(ctx, rq, in.ID); err != nil {
		return nil, err
	}
	key := listKey("journal", in.ID)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	last, err := number(place)
	if err != nil {
		return nil, err
	}
	entries, err := a.cfg.Store.Journal(ctx, in.ID, last+1, in.Limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(entries) > in.Limit {
		entries = entries[:in.Limit]
		next = encodeCursor(key, fmt.Sprint(entries[in.Limit-1].Seq))
	}
	return &listOutput[operation.Entry]{Body: newList(entries, next)}, nil
}

// number reads a place that is a number; the cursor's checksum has vouched for it.
func number(place string) (int64, error) {
	if place == "" {
		return 0, nil
	}
	n, err := strconv.ParseInt(place, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read place of cursor: %w", err)
	}
	return n, nil
}

func (a *API) listSteps(ctx context.Context, rq *request, in *struct {
	ID string `path:"id"`
}) (*listOutput[stepView], error) {
	op, err := a.loadOperation(ctx, rq, in.ID)
	if err != nil {
		return nil, err
	}
	return &listOutput[stepView]{Body: newList(viewSteps(&op), "")}, nil
}

func (a *API) listCommands(ctx context.Context, rq *request, in *ofOperation) (*listOutput[record.Command], error) {
	if _, err := a.loadOperation(ctx, rq, in.ID); err != nil {
		return nil, err
	}
	key := listKey("commands", in.ID)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	sort, index, _ := strings.Cut(place, "@")
	at, err := number(index)
	if err != nil {
		return nil, err
	}
	found, err := a.cfg.Store.Commands(ctx, in.ID, sort, int(at), in.Limit+1)
	if err != nil {
		return nil, err
	}
	next := ""
	if len(found) > in.Limit {
		found = found[:in.Limit]
		last := found[in.Limit-1]
		next = encodeCursor(key, fmt.Sprintf("%s@%d", last.Sort, last.Index))
	}
	items := make([]record.Command, len(found))
	for i, c := range found {
		items[i] = c.Command
	}
	return &listOutput[record.Command]{Body: newList(items, next)}, nil
}

// childView is one child of a plan, admitted or not.
type childView struct {
	Index     int                `json:"index"`
	Operation string             `json:"operation" doc:"Its id, known before it is admitted"`
	Type      string             `json:"type"`
	Target    string             `json:"target"`
	Admitted  bool               `json:"admitted"`
	Phase     string             `json:"phase" doc:"The operation's; waiting or skipped when it was not admitted"`
	Detail    *string            `json:"detail"`
	Waiting   *operation.Waiting `json:"waiting"`
	Link      *string            `json:"link"`
}

func (a *API) listChildren(ctx context.Context, rq *request, in *ofOperation) (*listOutput[childView], error) {
	if _, err := a.loadOperation(ctx, rq, in.ID); err != nil {
		return nil, err
	}
	key := listKey("children", in.ID)
	place, err := decodeCursor(key, in.Cursor)
	if err != nil {
		return nil, err
	}
	from, err := number(place)
	if err != nil {
		return nil, err
	}
	c, err := a.cfg.Store.Children(ctx, in.ID)
	if err != nil {
		return nil, err
	}
	kids, next := c.Kids[min(int(from), len(c.Kids)):], ""
	if len(kids) > in.Limit {
		kids, next = kids[:in.Limit], encodeCursor(key, fmt.Sprint(int(from)+in.Limit))
	}
	var ids []string
	for _, k := range kids {
		if k.Admitted && k.Phase == "" {
			ids = append(ids, k.Operation)
		}
	}
	live, err := a.cfg.Store.LoadMany(ctx, ids)
	if err != nil {
		return nil, err
	}
	items := make([]childView, len(kids))
	for i, k := range kids {
		v := childView{Index: k.Index, Operation: k.Operation, Type: k.Type, Target: k.TargetID, Admitted: k.Admitted, Phase: k.Phase,
			Detail: orNull(k.Detail), Waiting: k.Waiting}
		if op, ok := live[k.Operation]; ok {
			v.Phase, v.Waiting = string(op.State.Phase), op.State.Waiting
		}
		if k.Admitted {
			v.Link = orNull(operationsPath + "/" + k.Operation)
		} else if v.Phase == "" {
			v.Phase = "waiting"
		}
		items[i] = v
	}
	return &listOutput[childView]{Body: newList(items, next)}, nil
}
