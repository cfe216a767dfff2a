package notify

import "net/http"

// A webhook may take some messages and not others: it refuses what one alert says, or hangs
// on it. Those that it would take are not kept back by those, however many there are: a
// refusal is the message's own, as long as it takes others (refusedMost), what it hangs on
// leaves room for others (flights), and what was never tried has fair turns (line).

// refuses tells whether an answer of a webhook is about the one message: it is there, and
// may take others. It is not where a 4xx is about the place (404, 405, 410, 421, 426), who
// sends (401, 402, 403, 407) or how often, or how fast (408, 425, 429); see RFC 9110, 15.5.
func (a *answer) refuses() bool {
	switch a.status {
	case http.StatusUnauthorized, http.StatusPaymentRequired, http.StatusForbidden, http.StatusProxyAuthRequired,
		http.StatusNotFound, http.StatusMethodNotAllowed, http.StatusGone, http.StatusMisdirectedRequest, http.StatusUpgradeRequired,
		http.StatusRequestTimeout, http.StatusTooEarly, http.StatusTooManyRequests:
		return false
	}
	return a.status >= 400 && a.status < 500
}

// there tells whether an answer of a receiver of the kind says that it takes messages, if
// not this one.
func (a *answer) there(kind string) bool {
	if kind == KindAlertmanager {
		return a.taken() || a.refused()
	}
	return a.taken() || a.refuses()
}

// pointed is the data of the pointer by which a message is found that is to be sent.
type pointed struct {
	// New: the message was never tried (untried), and is the first of its alert that is to be sent, so
	// that it overtakes none of that. One that was never tried is, too, when the one After is
	// not to be sent any more. What an earlier plane put there is not new.
	New   bool   `json:"new,omitempty"`
	After string `json:"after,omitempty"`
	// Rule is the alert's, and Made when it was made (Unix milliseconds), of one that was
	// never tried.
	Rule string `json:"rule,omitempty"`
	Made int64  `json:"made,omitempty"`
	// Paced: it was answered with the pace alone (untried), and Apart: so often that the pace is
	// its own (Delivery.apart).
	Paced bool `json:"paced,omitempty"`
	Apart bool `json:"apart,omitempty"`
}

func pointedAt(d *Delivery) (p pointed) {
	if d.Push == nil && d.untried() {
		p.New, p.After, p.Rule, p.Made, p.Paced = d.First, d.After, d.Rule, d.CreatedAt.UnixMilli(), d.Paced > 0
	}
	p.Apart = d.Push == nil && d.apart()
	return p
}

// paces tells whether an answer of a webhook says how fast it may be told, and nothing of
// the message: that it has enough, or wants a pause.
func (a *answer) paces() bool { return a.status == http.StatusTooManyRequests || a.pause > 0 }

// untried tells whether nothing is known of a webhook's message: it was never tried, or but
// for the pace (paces) it might have been taken.
func (d *Delivery) untried() bool { return d.Tries == d.Paced }

// besideMost is how often a webhook takes others between two of the times that it answers a
// message with its pace, until that is the message's own.
const besideMost = 2

// apart tells whether what a webhook answers a message about the pace says nothing of others: it
// answered so again and again, and took others meanwhile. So it is with one that it never takes,
// which is not to keep back others each time it is tried, and with those that wait while it takes
// a few at a time: they have a pause together, and are tried a few at a time (lane.Apart).
func (d *Delivery) apart() bool { return d.Beside >= besideMost }
