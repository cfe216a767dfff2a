package operation

import (
	"fmt"
	"strings"
	"time"
)

// phaseTexts say what each phase means; the comments on the constants say who
// moves it on.
var phaseTexts = map[Phase]string{
	Pending:     "accepted, not started",
	Dispatched:  "a doorbell is due to the cluster's queue",
	Running:     "an agent, or the plane, holds the lease and works",
	Reconciling: "what an issued step did is unknown; nothing is issued until it has been read",
	Cancelling:  "a cancel was accepted; the work is brought to a consistent boundary",
	Succeeded:   "the wanted end state was observed",
	Failed:      "it ended without; a retry runs it again",
	Cancelled:   "it was ended on request",
	TimedOut:    "its deadline passed",
}

// waitingTexts is the registry of waiting codes.
var waitingTexts = []struct{ code, text string }{
	{WaitNoAgent, "no agent of the cluster is online"},
	{WaitIncompatible, "no online agent can do what the plan needs"},
	{WaitConflict, "another operation holds a resource"},
	{WaitResolve, "no probe could tell what a step did: a later probe, or a person's resolve"},
	{WaitProbe, "an agent has yet to probe"},
	{WaitQuota, "quota withholds capacity"},
	{WaitCapacity, "there is no capacity"},
	{WaitParent, "its parent has not come to it"},
	{WaitWindow, "its maintenance window is not open"},
}

// Diagram returns the page infra/docs/states.md: the state diagram and the
// tables of phases, waiting codes and deadlines, all from the tables in this
// package.
func Diagram() string {
	var b strings.Builder
	b.WriteString("# States of an operation\n\nWritten by `make diagrams` from the tables in `shared/operation`; do not edit.\n\n```mermaid\nstateDiagram-v2\n    [*] --> pending: admission\n")
	for _, from := range Phases {
		for _, to := range Phases {
			if by := triggersOf(from, to); by != "" {
				fmt.Fprintf(&b, "    %s --> %s: %s\n", from, to, by)
			}
		}
	}
	for _, p := range Phases {
		if p.Terminal() {
			fmt.Fprintf(&b, "    %s --> [*]\n", p)
		}
	}
	b.WriteString("```\n\n## Phases\n\n| phase | meaning | leaves by |\n| --- | --- | --- |\n")
	for _, p := range Phases {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", p, phaseTexts[p], leavesBy(p))
	}
	b.WriteString("\n## Waiting codes\n\nWhy an operation does not go on. The registry is open: later types add theirs.\n\n| code | meaning |\n| --- | --- |\n")
	for _, w := range waitingTexts {
		fmt.Fprintf(&b, "| %s | %s |\n", w.code, w.text)
	}
	b.WriteString("\n## Deadlines\n\n| type | default | most |\n| --- | --- | --- |\n")
	for _, typ := range Types() {
		d := DeadlinesOf(typ)
		fmt.Fprintf(&b, "| %s | %s | %s |\n", typ, span(d.Default), span(d.Max))
	}
	return b.String()
}

// triggersOf lists the triggers of the moves between two phases.
func triggersOf(from, to Phase) string {
	var by []string
	for _, t := range Transitions {
		if t.From == from && t.To == to {
			by = append(by, string(t.By))
		}
	}
	return strings.Join(by, ", ")
}

// leavesBy lists the triggers that move a phase out.
func leavesBy(p Phase) string {
	var by []string
	seen := map[Trigger]bool{}
	for _, t := range Transitions {
		if t.From == p && !seen[t.By] {
			seen[t.By] = true
			by = append(by, string(t.By))
		}
	}
	if len(by) == 0 {
		return "nothing"
	}
	return strings.Join(by, ", ")
}

// span writes a duration in the largest whole unit.
func span(d time.Duration) string {
	switch {
	case d%(24*time.Hour) == 0:
		return fmt.Sprintf("%d d", d/(24*time.Hour))
	case d%time.Hour == 0:
		return fmt.Sprintf("%d h", d/time.Hour)
	}
	return fmt.Sprintf("%d min", d/time.Minute)
}
