package rig

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/cloudformation"
)

// Functions are the functions of the template and the folders of their mains.
var Functions = map[string]string{
	"ApiFunction": "api", "AgentApiFunction": "agentapi", "AuthorizerFunction": "authorizer",
	"RelayFunction": "relay", "SweepFunction": "sweep", "PlaneFunction": "plane",
	"ReactFunction": "react",
}

// Stack is a deployed template.
type Stack struct {
	Endpoint string // of the local AWS
	Stage    string
	APIID    string
	Table    string
	Bus      string
	Prefix   string // of queues' names
}

// architecture is this machine's, as the template calls it: the local AWS runs
// functions as processes of its own.
func architecture() (name, goarch string) {
	if runtime.GOARCH == "arm64" {
		return "arm64", "arm64"
	}
	return "x86_64", "amd64"
}

// BuildDir is where Build leaves the functions, each in a folder of its logical
// name, and the template that names them.
func (r *Rig) BuildDir() string { return filepath.Join(r.state, "build") }

// Build runs `sam build` for this machine.
func (r *Rig) Build(ctx context.Context) error {
	if err := r.install(ctx, sam); err != nil {
		return err
	}
	arch, goarch := architecture()
	return r.run(ctx, append(Environment(""), "ARCH="+goarch),
		r.bin(sam, "sam"), "build", "--build-in-source", "--build-dir", r.BuildDir(), "--parameter-overrides", "Architecture="+arch)
}

// Deploy runs `sam deploy` of what Build left, into the local AWS.
func (r *Rig) Deploy(ctx context.Context, endpoint, stage string) (Stack, error) {
	arch, _ := architecture()
	name := "opsplane-" + stage
	err := r.run(ctx, Environment(endpoint), r.bin(sam, "sam"), "deploy", "--template-file", filepath.Join(r.BuildDir(), "template.yaml"),
		"--stack-name", name, "--resolve-s3", "--capabilities", "CAPABILITY_IAM", "--no-confirm-changeset", "--no-progressbar",
		"--parameter-overrides", "Stage="+stage, "Architecture="+arch, "LogLevel=info")
	if err != nil {
		return Stack{}, err
	}
	c, err := Configuration(ctx, endpoint)
	if err != nil {
		return Stack{}, err
	}
	out, err := cloudformation.NewFromConfig(c).DescribeStacks(ctx, &cloudformation.DescribeStacksInput{StackName: &name})
	if err != nil {
		return Stack{}, fmt.Errorf("describe stack %s: %w", name, err)
	}
	got := map[string]string{}
	for _, s := range out.Stacks {
		for _, o := range s.Outputs {
			got[aws.ToString(o.OutputKey)] = aws.ToString(o.OutputValue)
		}
	}
	s := Stack{Endpoint: endpoint, Stage: stage, APIID: got["ApiId"], Table: got["TableName"], Bus: got["BusName"], Prefix: got["QueuePrefix"]}
	if slices.Contains([]string{s.APIID, s.Table, s.Bus, s.Prefix}, "") {
		return Stack{}, fmt.Errorf("stack %s lacks outputs: it has %v", name, got)
	}
	return s, nil
}

// Lint checks the template with every tool: cfn-lint, checkov and
// `sam validate --lint`. What a tool is told to pass over says why in the
// template.
func (r *Rig) Lint(ctx context.Context) error {
	for _, t := range []tool{lint, sam} {
		if err := r.install(ctx, t); err != nil {
			return err
		}
	}
	for _, argv := range [][]string{
		{r.bin(lint, "cfn-lint"), "template.yaml"},
		// Its guidelines come from a service of its vendor, which no check needs.
		{r.bin(lint, "checkov"), "--file", "template.yaml", "--framework", "cloudformation", "--skip-download", "--quiet", "--compact"},
		{r.bin(sam, "sam"), "validate", "--lint"},
	} {
		if err := r.run(ctx, Environment(""), argv...); err != nil {
			return err
		}
		r.Say("%s: passed", filepath.Base(argv[0]))
	}
	return nil
}
