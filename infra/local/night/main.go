// Command night plays a night in a minute: a plane and its agents, each in a
// process of its own, over simulated clusters in which one thing after the other
// goes bad. It shows the alerts as they come, and compares all that was told with a
// list that is checked in. Of times it says nothing: those differ.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
)

const header = `# A night in a minute: what "make demo-alerts" tells of each alert, in order. Times are left out.

`

func main() {
	program := flag.String("program", "bin/opsplane", "the `file` of the program")
	list := flag.String("list", "infra/docs/night.txt", "the `file` to compare with")
	write := flag.Bool("write", false, "write the list instead")
	flag.Parse()
	if err := run(*program, *list, *write); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(program, list string, write bool) error {
	dir, err := os.MkdirTemp("", "opsplane-night")
	if err != nil {
		return fmt.Errorf("make folder: %w", err)
	}
	lines, err := play(context.Background(), program, dir, os.Stdout)
	if err != nil {
		return fmt.Errorf("%w (what is left is in %s)", err, dir)
	}
	if err := os.RemoveAll(dir); err != nil {
		return fmt.Errorf("remove folder: %w", err)
	}
	got := header + strings.Join(lines, "\n") + "\n"
	if write {
		return os.WriteFile(list, []byte(got), 0o644)
	}
	want, err := os.ReadFile(list)
	if err != nil {
		return fmt.Errorf("read list: %w", err)
	}
	if got != string(want) {
		return fmt.Errorf("what was told differs from %s:\n%s", list, got)
	}
	fmt.Printf("\n%d alerts, as %s has them.\n", len(lines), list)
	return nil
}
