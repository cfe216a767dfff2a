// Package version is the product's version, the same in every program.
package version

// Version is what programs, the API and agents call themselves.
const Version = "0.1.0"
