// Package export moves a ledger to another engine: Write walks a ledger at rest
// and writes it as a stream of lines, Import checks such a stream and puts it into
// an empty ledger, and Live says what must have ended before.
//
// # The stream
//
// Each line is 16 hexadecimal digits, a blank and one JSON document: first a
// header, then the items, last a trailer. The digits are the first eight bytes of
// the SHA-256 of all documents up to and with this one, a newline after each, so
// that whatever was changed, moved or cut is found at its line. The trailer has
// the whole sum and the counts.
//
// Items come in the order in which they may be there: last those that let others
// act. See stage.
//
// # What is not moved
//
// Positions in the source's change feed, which mean nothing elsewhere; previews and
// parts of inventories that were being sent, which live for minutes; versions of
// items, which begin at 1 again. Each stream's position on the bus is set to its
// end: rules on the new bus hear what happens from then on and nothing old.
package export
