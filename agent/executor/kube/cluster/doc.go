// Package cluster is the Kubernetes API server as the executors of the operation
// types reach it: one client, one way to issue an effect, one reading of errors.
//
// What goes through it:
//
//   - reads, under a deadline of their own (Read), whose failures become findings
//     and outcomes by Unread and Broken;
//   - effects (Effect, Repeatable), which record a command, ask the fence, call
//     once and classify the answer. client-go's silent waits for a busy server are
//     off for them: a step knows best whether and when to ask again;
//   - whether it answers at all (Pulse), which a watch cannot tell: everyone who
//     waits for its word asks there;
//   - marks (Mark), the generation that node patches, templates and Jobs carry so
//     that an older generation is refused by the API server itself.
//
// Outcomes and findings themselves are package executor's.
package cluster
