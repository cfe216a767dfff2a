// Package crashtest holds the one-machine engine to its promises from outside:
// its tests build the real program, start it as a user would, drive it over HTTP,
// stop, pause and kill -9 the plane and its agents, and then compare what is
// there with what was acknowledged.
//
// TestCrash does OPSPLANE_CRASH_ROUNDS rounds (30) of kills under load, from the
// seed in OPSPLANE_CRASH_SEED (random, printed). The others each look at one kind
// of fault. A test that fails keeps its folder and prints its path.
package crashtest
