package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/opsplane/opsplane/infra/aws"
	"github.com/opsplane/opsplane/infra/local"
)

// deploymentFlags name a deployment on AWS.
type deploymentFlags struct {
	Stack       string `help:"CloudFormation stack of the deployment." placeholder:"NAME"`
	Table       string `help:"Table of the deployment, instead of its stack." placeholder:"NAME"`
	QueuePrefix string `help:"What its queues' names begin with (default: as the stack says, else the table's name and a hyphen)." placeholder:"PREFIX"`
	Region      string `help:"AWS region (default: as AWS's tools find it)."`
	Endpoint    string `help:"URL of another AWS than Amazon's (default: as AWS's tools find it)." placeholder:"URL"`
}

func (f *deploymentFlags) named() bool { return f.Stack != "" || f.Table != "" }

func (f *deploymentFlags) open(ctx context.Context) (*aws.Deployment, error) {
	return aws.Open(ctx, aws.Options{Stack: f.Stack, Table: f.Table, QueuePrefix: f.QueuePrefix, Region: f.Region, Endpoint: f.Endpoint,
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))})
}

type verifyCmd struct {
	Data string `arg:"" optional:"" help:"Data folder or backup file." default:"data" env:"OPSPLANE_DATA"`
	deploymentFlags
}

func (c *verifyCmd) Run(ctx context.Context) error {
	if !c.named() {
		return local.Verify(ctx, c.Data, os.Stdout)
	}
	d, err := c.open(ctx)
	if err != nil {
		return err
	}
	return d.Verify(ctx, os.Stdout)
}

type importCmd struct {
	deploymentFlags
}

func (c *importCmd) Run(ctx context.Context) error {
	if terminal(os.Stdin) {
		return errors.New("an export is read from standard input: opsplane import --table NAME < FILE")
	}
	d, err := c.open(ctx)
	if err != nil {
		return err
	}
	return importInto(ctx, d, os.Stdin, os.Stdout, os.Stderr)
}

func importInto(ctx context.Context, d *aws.Deployment, stream io.Reader, out, log io.Writer) error {
	r, err := d.Import(ctx, stream, teller(log))
	if err != nil {
		return fmt.Errorf("%w (what is wrong mended, the same command goes on from here)", err)
	}
	if r.Already {
		fmt.Fprintf(out, "this export was imported before: nothing changed\n")
		return nil
	}
	fmt.Fprintf(out, "%d items of %s into table %s: %d written, %d there from a run before, %d run out since the export; %d queues\nsha256 %s\n",
		r.Header.Items, r.Header.Source.Name, d.Table, r.Put, r.Found, r.Expired, len(r.Queues), r.SHA256)
	return d.Compare(ctx, r.Header.Holds, out)
}

// teller tells of progress every two seconds.
func teller(w io.Writer) func(part string, done, of int64) {
	var (
		mu   sync.Mutex
		next = time.Now().Add(2 * time.Second)
	)
	return func(part string, done, of int64) {
		mu.Lock()
		defer mu.Unlock()
		if now := time.Now(); now.After(next) {
			next = now.Add(2 * time.Second)
			fmt.Fprintf(w, "%s: %d of %d items\n", part, done, of)
		}
	}
}

// terminal tells whether a person types or reads there.
func terminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

type awsCmd struct {
	AdminToken adminTokenCmd `cmd:"" help:"Make the first administrator's token; it is printed this once."`
}

type adminTokenCmd struct {
	deploymentFlags
	Another bool `help:"Make one although there is one, as when it was lost."`
}

func (c *adminTokenCmd) Run(ctx context.Context) error {
	d, err := c.open(ctx)
	if err != nil {
		return err
	}
	t, bearer, err := d.AdminToken(ctx, c.Another)
	if err != nil {
		return err
	}
	fmt.Fprintf(os.Stderr, "token %s of an administrator, printed this once; table %s keeps only its hash\n", t.ID, d.Table)
	if d.URL != "" {
		fmt.Fprintf(os.Stderr, "the API is at %s\n", d.URL)
	}
	fmt.Println(bearer)
	return nil
}
