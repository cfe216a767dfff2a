package protocol

import "time"

// Capability is something the agent can do, and how new its way of doing it is.
type Capability struct {
	Name    string `json:"name"`
	Version int    `json:"version"`
}

// MaxMark is the largest HeartbeatAnswer.Mark: far more than heartbeats come to.
const MaxMark = 1<<53 - 1

// Heartbeat is POST /v1/agent/heartbeat: sent at the start and then
// every HeartbeatAnswer.HeartbeatMS.
type Heartbeat struct {
	Name         string       `json:"name"` // this agent process's stable name in its cluster
	Boot         string       `json:"boot"` // new at each start
	Version      string       `json:"version"`
	Capabilities []Capability `json:"capabilities"`
	SentAt       time.Time    `json:"sent_at"` // the agent's wall clock, to measure skew
	Leases       int          `json:"leases"`
	Capacity     int          `json:"capacity"`
	Stopping     bool         `json:"stopping,omitempty"`
	// CutOff: what the agent works on, such as the API server, does not answer it.
	CutOff bool `json:"cut_off,omitempty"`
	// Mark is HeartbeatAnswer.Mark as it was told last; 0: none was.
	Mark int64 `json:"mark,omitempty"`
}

// HeartbeatAnswer configures the agent.
type HeartbeatAnswer struct {
	AgentID string `json:"agent_id"`
	Cluster string `json:"cluster"`
	// ServerTime is the plane's clock at the answer.
	ServerTime     time.Time `json:"server_time"`
	LeaseMS        int64     `json:"lease_ms"`
	CallDeadlineMS int64     `json:"call_deadline_ms"`
	// HeartbeatMS is how long after this heartbeat the next one is due; 0: 5 s.
	HeartbeatMS int64 `json:"heartbeat_ms,omitempty"`
	// ReportMS is how long what need not be told at once may wait for a report;
	// 0: 1 s.
	ReportMS int64 `json:"report_ms,omitempty"`
	// Reporter: this agent holds the reporter lease and sends inventory.
	Reporter bool `json:"reporter"`
	// Mark grows with each heartbeat of the reporter that the plane has kept. A
	// plane that knows of less than the reporter was told has lost what came since,
	// as one does whose record is from a backup, and asks for a full resend.
	Mark int64 `json:"mark,omitempty"`
	// FullInventory: the plane asks for a full resend.
	FullInventory bool `json:"full_inventory"`
	// QueueURL is where to poll on AWS; empty: the plane's own long poll.
	QueueURL string `json:"queue_url,omitempty"`
}
