package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/opsplane/opsplane/agent/executor/kube/component/answer"
)

func TestBadArgumentsAreAnswered(t *testing.T) {
	good := "upgrade -release r -namespace n -chart /c -version 1.2.3 -operation op_1 -run 1 -generation 2"
	tests := []struct{ args, want string }{
		{"", "name a verb"},
		{"install -release r -namespace n -operation op_1", `unknown verb "install"`},
		{"status -namespace n -operation op_1", "-release is missing"},
		{strings.Replace(good, "1.2.3", "latest", 1), `-version "latest" is no semantic version`},
		{strings.Replace(good, "-run 1", "", 1), "count from 1"},
		{good + " -repository https://user:secret@charts.example", "without credentials"},
		{good + " -repository ftp://charts.example", "no http(s) URL"},
		{good + " -recover 1,x", `"x" is no generation`},
		{good + " -timeout 10ms", "-timeout is under 1s"},
		{good + " more", `unknown argument "more"`},
	}
	for _, tt := range tests {
		path := filepath.Join(t.TempDir(), "log")
		t.Setenv(envTerminationLog, path)
		var stderr strings.Builder
		code := run(strings.Fields(tt.args), &stderr)
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		a, err := answer.Decode(string(text))
		if code != 1 || err != nil || a.Code != answer.InvalidArguments || !strings.Contains(a.Detail, tt.want) {
			t.Errorf("%s: exit code %d, %v %+v", tt.args, code, err, a)
		}
		if strings.Contains(string(text), "secret") {
			t.Errorf("%s: the answer repeats a credential: %s", tt.args, text)
		}
	}
	t.Setenv(envTerminationLog, filepath.Join(t.TempDir(), "no", "such", "folder"))
	if code := run(nil, &strings.Builder{}); code != 2 {
		t.Errorf("exit code %d when the answer cannot be written", code)
	}
}
