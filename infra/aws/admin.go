package aws

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/sts"

	"github.com/opsplane/opsplane/shared/auth"
	"github.com/opsplane/opsplane/shared/ledger"
	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/record"
)

// ErrAdminExists: an administrator has a token already, who can make others.
var ErrAdminExists = errors.New("there is an administrator's token")

const adminTokenPath = "opsplane aws admin-token"

// AdminToken makes an administrator's token for whoever may write to the table,
// and returns it: only its hash is kept. It is refused with ErrAdminExists when
// one is in force, unless another is asked for. The audit record names the AWS
// principal.
func (d *Deployment) AdminToken(ctx context.Context, another bool) (auth.Token, string, error) {
	tokens := auth.NewStore(d.Ledger, time.Now)
	if !another {
		if err := noAdmin(ctx, tokens); err != nil {
			return auth.Token{}, "", err
		}
	}
	who := d.principal(ctx)
	t, bearer, write, err := tokens.CreateWrite(auth.TokenSpec{Name: "administrator", Role: auth.Admin, Force: true, CreatedBy: who})
	if err != nil {
		return t, "", err
	}
	audit := record.AuditWrite(record.Audit{At: t.CreatedAt, Actor: operation.Actor{ID: who, Kind: "aws"}, Method: "AWS", Path: adminTokenPath,
		Action: "token.create", Resource: t.ID, Status: 201})
	if err := d.Ledger.Commit(ctx, write, audit); err != nil {
		return t, "", fmt.Errorf("keep the token in table %s: %w", d.Table, plainIn(err))
	}
	return t, bearer, nil
}

// noAdmin looks for a token in force that may make others. The list is read off
// an index, so that one made within the last second may be missed.
func noAdmin(ctx context.Context, tokens *auth.Store) error {
	for cursor := ""; ; {
		ts, next, err := tokens.List(ctx, cursor, ledger.MaxPage)
		if err != nil {
			return plainIn(err)
		}
		for _, t := range ts {
			if t.Role == auth.Admin && len(t.Clusters) == 0 && t.Ended(time.Now()) == "" {
				return fmt.Errorf("%w: %s (%s, made %s by %s); --another makes one more", ErrAdminExists, t.ID, t.Name, t.CreatedAt.Format(time.RFC3339), t.CreatedBy)
			}
		}
		if cursor = next; cursor == "" {
			return nil
		}
	}
}

// principal is the ARN of whoever calls, as CloudTrail has it.
func (d *Deployment) principal(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, err := sts.NewFromConfig(d.config).GetCallerIdentity(ctx, &sts.GetCallerIdentityInput{})
	if err != nil {
		return "aws:unknown" // it may write to the table, which is what counts
	}
	return aws.ToString(out.Arn)
}

// plainIn is plain, with what the seam says of the error kept.
func plainIn(err error) error {
	for _, kind := range []error{ledger.ErrUnavailable, ledger.ErrInvalid, ledger.ErrConflict} {
		if errors.Is(err, kind) {
			if p := plain(err); p != err {
				return fmt.Errorf("%w: %w", kind, p)
			}
		}
	}
	return err
}
