package registry

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"regexp"

	"github.com/opsplane/opsplane/shared/admission"
	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/event"
	"github.com/opsplane/opsplane/shared/fleet"
	"github.com/opsplane/opsplane/shared/id"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// nameShape is a DNS label (RFC 1123, section 2.1), as Kubernetes names are.
var nameShape = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// NewCluster is a cluster with its agents' token, which is shown this once.
type NewCluster struct {
	Cluster fleet.Cluster
	Token   auth.Token
	Secret  string
}

// Create registers a cluster: its name, its queue, and a token for its agents.
// The queue is made first: a queue without a cluster harms nobody. While it is not
// known whether there is a cluster, its queue stays.
func (s *Service) Create(ctx context.Context, call admission.Call, name string) (NewCluster, error) {
	if !nameShape.MatchString(name) {
		return NewCluster{}, operation.Invalid(operation.FieldError{Pointer: "/name", Code: "format",
			Detail: "must be a DNS label: 1 to 63 lower-case letters, digits and hyphens, which begins and ends with a letter or digit"})
	}
	if id.Valid(id.Cluster, name) || name == event.PlaneStream {
		return NewCluster{}, operation.Invalid(operation.FieldError{Pointer: "/name", Code: "reserved", Detail: "is a name that the plane uses"})
	}
	if _, err := s.Store.Ledger.Get(ctx, record.ClusterNameKey(name)); err == nil {
		return NewCluster{}, operation.Refuse("name_taken", "there is a cluster %s", name)
	} else if !errors.Is(err, ledger.ErrNotFound) {
		return NewCluster{}, fmt.Errorf("look up cluster name: %w", err)
	}
	now := s.now()
	clusterID := id.New(id.Cluster, now)
	token, secret, tokenWrite, err := s.Tokens.CreateWrite(auth.TokenSpec{Name: "agents of " + name, CreatedBy: call.Caller.Actor.ID, AgentCluster: clusterID})
	if err != nil {
		return NewCluster{}, err
	}
	c := fleet.Cluster{ID: clusterID, Name: name, Queue: fleet.QueueName(clusterID), TokenID: token.ID, CreatedAt: now, CreatedBy: call.Caller.Actor}
	if err := s.Queues.Ensure(ctx, c.Queue); err != nil {
		return NewCluster{}, fmt.Errorf("make queue of cluster %s: %w", name, err)
	}
	_, err = event.Append(ctx, s.Store.Ledger, event.PlaneStream, s.told(event.TypeClusterCreated, call, c), func() ([]ledger.Write, error) {
		return []ledger.Write{
			{Item: record.ClusterItem(&c)},
			{Item: ledger.Item{Key: record.ClusterNameKey(name), Data: record.Encode(record.ClusterName{Cluster: c.ID})}},
			tokenWrite,
			s.audit(call, "cluster.create", c.ID, http.StatusCreated, ""),
		}, nil
	})
	unknown := errors.Is(err, ledger.ErrUnknown)
	if unknown {
		if _, _, rerr := s.Store.Cluster(context.WithoutCancel(ctx), clusterID); rerr == nil {
			err = nil // it was made, and its token is told while it can be
		}
	}
	if err == nil {
		return NewCluster{Cluster: c, Token: token, Secret: secret}, nil
	}
	if unknown {
		return NewCluster{}, fmt.Errorf("create cluster %s: %w", name, err)
	}
	if rerr := s.Queues.Remove(context.WithoutCancel(ctx), c.Queue); rerr != nil {
		err = errors.Join(err, fmt.Errorf("remove queue of cluster %s: %w", name, rerr))
	}
	if taken(err, name) {
		return NewCluster{}, operation.Refuse("name_taken", "there is a cluster %s", name)
	}
	return NewCluster{}, fmt.Errorf("create cluster %s: %w", name, err)
}

// taken tells whether a commit failed because of the name.
func taken(err error, name string) bool {
	c, ok := errors.AsType[*ledger.ConflictError](err)
	if !ok {
		return false
	}
	for _, k := range c.Keys {
		if k == record.ClusterNameKey(name) {
			return true
		}
	}
	return false
}

// told is the event of a change of the fleet, in the plane's stream.
func (s *Service) told(typ string, call admission.Call, c fleet.Cluster) []event.Event {
	e, err := event.New(typ, "", event.Subject{Kind: operation.KindCluster, ID: c.ID, Name: c.Name}, s.now(), call.Caller.Actor,
		map[string]any{"cluster": c.ID, "name": c.Name}, c.ID)
	if err != nil {
		return nil // the types are constants and the detail always encodes
	}
	e.CorrelationID = call.CorrelationID
	return []event.Event{e}
}

// Find returns a cluster that the caller may see, by id or name.
func (s *Service) Find(ctx context.Context, call admission.Call, name string) (fleet.Cluster, error) {
	c, err := admission.FindCluster(ctx, s.Store, name)
	if errors.Is(err, ledger.ErrNotFound) || (err == nil && !call.Caller.May(c.ID)) {
		return fleet.Cluster{}, noCluster(name)
	}
	return c, err
}

// RotateToken gives a cluster's agents a new token and ends the old one, in one
// commit.
func (s *Service) RotateToken(ctx context.Context, call admission.Call, name string) (NewCluster, error) {
	var out NewCluster
	err := record.Again(ctx, func() error {
		found, err := s.Find(ctx, call, name)
		if err != nil {
			return err
		}
		c, version, err := s.Store.Cluster(ctx, found.ID)
		if errors.Is(err, ledger.ErrNotFound) {
			return noCluster(name)
		}
		if err != nil {
			return err
		}
		if c.Deleting {
			return operation.Refuse("cluster_in_use", "cluster %s is being deleted", c.Name)
		}
		token, secret, write, err := s.Tokens.CreateWrite(auth.TokenSpec{Name: "agents of " + c.Name, CreatedBy: call.Caller.Actor.ID, AgentCluster: c.ID})
		if err != nil {
			return err
		}
		old := c.TokenID
		c.TokenID = token.ID
		writes := []ledger.Write{{Item: record.ClusterItem(&c), Expect: version}, write, s.audit(call, "cluster.rotate_token", c.ID, http.StatusOK, "")}
		_, revoke, err := s.Tokens.RevokeWrite(ctx, old, call.Caller.Actor.ID)
		if err != nil && !errors.Is(err, auth.ErrNoToken) {
			return err
		}
		if err == nil {
			writes = append(writes, revoke)
		}
		if err := s.Store.Ledger.Commit(ctx, writes...); err != nil {
			return fmt.Errorf("rotate token of cluster %s: %w", c.ID, err)
		}
		s.Tokens.Forget(old)
		out = NewCluster{Cluster: c, Token: token, Secret: secret}
		return nil
	})
	return out, err
}
