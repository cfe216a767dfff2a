package operation

// restoredGenerations is how far a restore moves an operation's generation:
// past any that was given out between the backup and the restore.
const restoredGenerations = 1_000_000

// FromBackup tells whether a record of that generation was restored from a backup: what
// was done between the backup and the restore may be missing from it.
func FromBackup(generation int64) bool { return generation > restoredGenerations }

// EntryRestored is the kind of the entry that a restore leaves.
const EntryRestored = "restored"

// Restored: the operation was live in a backup that is now the record. What
// happened since is not known here, so nobody holds it, holders from before are
// fenced off, and whoever claims it probes before anything is issued.
type Restored struct{ By Actor }

func (c Restored) apply(tx *transaction) error {
	if tx.s.Phase.Terminal() || tx.s.PlaneLocal {
		return ErrNoChange
	}
	const detail = "restored from a backup: what was done since is not in this record"
	tx.forget(detail)
	held := tx.s.Lease != nil
	tx.endLease("restored")
	tx.s.Generation += restoredGenerations
	at := tx.at
	tx.s.RungAt, tx.s.Rings = &at, 0
	tx.note(Entry{Kind: EntryRestored, By: c.By, Detail: detail})
	if held && tx.s.Phase != Reconciling {
		return tx.move(Reconciling, ByLoss, c.By, "restored", detail)
	}
	if tx.s.Phase == Pending {
		tx.s.RungAt = nil
	}
	return nil
}
