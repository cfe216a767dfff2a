package deployment

import (
	"fmt"

	"github.com/opsplane/opsplane/shared/operation"
	"github.com/opsplane/opsplane/shared/protocol"
)

// goal is what a restart set out to renew. What is different later is somebody's
// doing: less is not what was asked for.
type goal struct {
	Replicas  int `json:"replicas"`
	Partition int `json:"partition,omitempty"`
	// Generation is the object's with the restart: its controller has taken notice
	// when it observed that one.
	Generation int64 `json:"generation,omitempty"`
}

func (r *rollout) goal() *goal {
	return &goal{Replicas: r.desired, Partition: r.partition, Generation: r.generation + 1}
}

// target is how many replicas the rollout has to renew to be what was asked for:
// those that a partition lets go, be it the one of now or, if that was raised, the
// one of the restart. Where it was raised over a restart that nobody wrote down the
// goal of, it may have been all of them.
func (r *rollout) target() int {
	switch {
	case r.record == nil:
		return r.want
	case r.record.Goal != nil:
		return max(r.want, r.desired-r.record.Goal.Partition)
	case r.overtaken():
		return r.desired
	}
	return r.want
}

// overtaken tells whether the partition of now is certainly not the one of a restart
// that an agent made which wrote down no goal: none is begun under a partition of all
// replicas, and none renews more than a partition lets go. Only a StatefulSet counts
// no replicas of a surge with the updated ones.
func (r *rollout) overtaken() bool {
	more := r.kind == statefulSets && r.partition > 0 && r.total <= r.desired && r.updated > r.want
	return r.desired > 0 && r.want == 0 || more
}

// kept is how many replicas a partition keeps that kept them from the first.
func (r *rollout) kept() int { return r.desired - r.target() }

// emptied tells whether the object was scaled down since its restart so far that
// nothing is left of what was to be renewed.
func (r *rollout) emptied() bool {
	return r.record != nil && r.record.Goal != nil && r.record.Goal.Replicas > r.record.Goal.Partition && r.target() == 0
}

// barred is what no restart gets past; nil if there is nothing.
func (r *rollout) barred(p operation.RollPayload) *protocol.Blocker {
	block := func(code, rule, format string, args ...any) *protocol.Blocker {
		return &protocol.Blocker{Code: code, Resource: "deployment/" + r.name(), Rule: rule, Detail: fmt.Sprintf(format, args...)}
	}
	switch {
	case r.object.GetDeletionTimestamp() != nil:
		return block("deployment_gone", "metadata.deletionTimestamp", "%s %s is being deleted", r.kind.name, r.name())
	case r.paused:
		return block(codePaused, "spec.paused", "the rollout of %s is paused: nothing would restart", r.name())
	case r.strategy == onDelete:
		return block("not_supported", ruleStrategy, "StatefulSet %s has the strategy OnDelete: its pods restart when somebody deletes them", r.name())
	case r.desired > 0 && r.want == 0:
		return block("not_supported", rulePartition, "%s %s has a partition of all its %d replicas: none would restart", r.kind.name, r.name(), r.desired)
	case r.kind == dynamoGraphs && p.Undo == "on_failure":
		return block("not_supported", "undo", "undo of a DynamoGraphDeployment: its operator restarts it in place, there is no revision to go back to")
	case r.kind == dynamoGraphs && r.restart.rolling:
		return block("rolling", "status.rollingUpdate", "%s is being rolled out: its operator would drop a restart until that is over", r.name())
	}
	return nil
}

// warnings are what is worth knowing of a restart that goes ahead.
func (r *rollout) warnings() []protocol.Blocker {
	var list []protocol.Blocker
	warn := func(code, rule, format string, args ...any) {
		list = append(list, protocol.Blocker{Code: code, Resource: "deployment/" + r.name(), Rule: rule, Detail: fmt.Sprintf(format, args...)})
	}
	if r.desired == 0 {
		warn("no_replicas", "spec.replicas", "%s has no replicas, so nothing will restart", r.name())
	} else if r.want < r.desired {
		warn("partition", rulePartition, "a partition of %d keeps %d of the %d replicas of %s as they are: %d will restart", r.partition, r.desired-r.want, r.desired, r.name(), r.want)
	}
	if r.strategy == "Recreate" {
		warn("recreate", ruleStrategy, "the strategy Recreate of %s stops all of its pods before new ones start", r.name())
	}
	if r.exceeded != "" {
		warn(codeDeadline, "status", "the last rollout of %s failed: %s", r.name(), bound(r.exceeded))
	} else if !r.settled() {
		warn("rolling", "status", "%s is being rolled out (%s), the restart takes its place", r.name(), r)
	}
	return list
}

// holds are what somebody changed since the restart that keeps it from its goal, or
// takes the goal away. The rollout is theirs then: it waits for them, and is not
// taken back.
func (r *rollout) holds() []cause {
	var list []cause
	hold := func(code, rule, rest, format string, args ...any) {
		list = append(list, cause{code: code, resource: "deployment/" + r.name(), rule: rule, detail: fmt.Sprintf(format, args...), rest: rest, held: true})
	}
	if r.paused {
		list = append(list, pausedCause(r))
	}
	if r.strategy == onDelete {
		hold(codeOnDelete, ruleStrategy, "the rest restarts when somebody deletes its pods, or the strategy is RollingUpdate again",
			"the update strategy of %s was changed to OnDelete after the restart: its controller replaces no pod until somebody deletes it", r.name())
	}
	if target := r.target(); r.want < target {
		was := fmt.Sprintf("the partition of %s was raised to %d after the restart", r.name(), r.partition)
		if r.record.Goal == nil {
			was = fmt.Sprintf("a partition of %d is not what %s was restarted under: it was raised, or replicas were taken away, after the restart", r.partition, r.name())
		}
		does := fmt.Sprintf("it keeps %d of the %d replicas that were to restart", target-max(r.want, r.updated), target)
		if r.updated >= target {
			does = fmt.Sprintf("all %d replicas that were to restart had their new template by then", target)
		}
		hold(codePartition, rulePartition, "the rest restarts when the partition is lowered", "%s: %s", was, does)
	}
	if r.emptied() {
		what := fmt.Sprintf("%s was scaled from %d replicas to %d after the restart", r.name(), r.record.Goal.Replicas, r.desired)
		if r.desired > 0 {
			what += fmt.Sprintf(", which are those that a partition of %d keeps", r.partition)
		}
		hold(codeScaled, "spec.replicas", "what is made when it is scaled up again is of the restarted template", "%s: nothing is left that could restart", what)
	}
	return list
}

// tally words a count. More than are wanted, as while a rollout surges, is no part
// of them.
func tally(n, wanted int, are string) string {
	switch {
	case n > wanted:
		return fmt.Sprintf("%d replicas %s, %d wanted", n, are, wanted)
	case wanted == 0:
		return "no replicas " + are
	}
	return fmt.Sprintf("%d of %d replicas %s", n, wanted, are)
}
