package record

// BusyPartitions are the index partitions that every operation writes to: an
// engine whose partitions have a throughput limit spreads each over several
// (DynamoDB: 1,000 write units a second for one).
func BusyPartitions() []string { return []string{ListOperations} }
