// Package coldstart runs the functions of the HTTP API as processes of their own
// against a local AWS: that they answer as they should, and how long one takes
// from its start to its first answer.
package coldstart
