// Package bench measures the one-machine engine and, beside it in the same run,
// the job queue river on SQLite. It is a module of its own so that the product
// does not carry what it is compared with.
package bench
