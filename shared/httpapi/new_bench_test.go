package httpapi

import "testing"

// BenchmarkRoutes is what making the routes takes of a function's start.
func BenchmarkRoutes(b *testing.B) {
	for b.Loop() {
		newAPI(Config{}, (*API).userRoutes)
	}
}
