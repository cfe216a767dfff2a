// Package awstest proves the product on AWS from outside: its tests drive the
// functions that `sam deploy` put into a local AWS, by HTTP, queues, rules and
// the table, as users, agents and faults would.
//
// Package up starts what they need and tells them of it by the environment; a
// test that finds something missing fails. Packages below hold the tools: rig the
// local AWS, template what the template says, bill what AWS charges.
package awstest
