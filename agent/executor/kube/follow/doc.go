// Package follow keeps objects of the API server up to date: a list, and a watch
// from there. Every executor on Kubernetes that waits for something waits on a Feed,
// so that what it does when the API server is slow, away or forgets is the same.
//
//	Source  what is listed and watched (Of: of a client's typed or dynamic resource)
//	Feed    the objects of one source, in buckets that are waited for one by one
//	Shared  a Feed that several use, which lingers on after the last of them
//	Group   Feeds that one waits for together
//
// # What a Feed does
//
// It lists once, under the deadline of one read, and watches from that list's
// version; how long the API server may take to begin a watch is bounded alike. A
// watch that ends goes on from the last version that was heard; only where the API
// server no longer knows that (410) the list is read again: at once, within a jitter
// of 100 ms. After a failure it tries again with a growing, bounded and jittered wait,
// up to 2 s, and says since when and why it knows nothing new. Failures are, too, a
// further 410 with nothing heard since the last, and a watch that ends within a second
// with nothing heard (a balancer that answers for a server that is not there): the
// wait grows up to 8 s then, and that a list is read or a watch begins is no end of it
// until one has brought something or has lasted for a second. A missing right is an
// error like any other here, for the user to judge. None of it touches a lease or a
// fence: a Feed only reads.
//
// A watch over a connection that died without a word is silent until client-go's
// pings give it up, some 45 s later. Trouble hears of it sooner, by the API server's
// pulse (package cluster), which everyone who waits listens to.
// https://kubernetes.io/docs/reference/using-api/api-concepts/#efficient-detection-of-changes
package follow
