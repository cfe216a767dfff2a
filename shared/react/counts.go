package react

import "github.com/opsplane/opsplane/shared/tally"

// Counts are the numbers under their names.
func (s *Stats) Counts() []tally.Count {
	return []tally.Count{
		{Name: "events_judged_total", Help: "Events, the plane's own too, that the rules have judged.", Value: s.Judged},
		{Name: "events_late_total", Help: "Judged events that were told more than 5 minutes after they happened.", Value: s.Late},
		{Name: "events_unjudged_total", Help: "Events that passed retention before they were judged; what a restore passed over is one.", Value: s.Lost},
		{Name: "events_unreadable_total", Help: "Stored events that cannot be read and were passed over.", Value: s.Skipped},
		{Name: "rule_matches_total", Help: "Events that matched a rule.", Value: s.Matched},
		{Name: "rule_evaluations_total", Help: "Expressions of rules that were evaluated.", Value: s.Evaluated},
		{Name: "rule_errors_total", Help: "Expressions that could not be evaluated, and so did not hold.", Value: s.Errors},
		{Name: "rule_cost_total", Help: "What rules' expressions cost, in CEL's units; of cheap ones by every 256th.", Value: s.Cost},
		{Name: "rule_groups_folded_total", Help: "Groups over a rule's limit in a stream.", Value: s.Folded},
		{Name: "rule_timers_total", Help: "Timers of rules that came due.", Value: s.Timers},
		{Name: "rule_faults_total", Help: "Rules, silences and positions of streams that could not be used, each time that they were read.", Value: s.Faulty},
		{Name: "stream_clocks_set_back_total", Help: "Clocks of streams that one of the plane's had pushed ahead and that were set back.", Value: s.SetBack},
		{Name: "reactor_panics_total", Help: "Passes of the reactor that ended in a panic.", Value: s.Panics},
		{Name: "reactor_retries_total", Help: "Passes of the reactor that lost a race.", Value: s.Retries},
	}
}
