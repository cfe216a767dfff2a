module github.com/opsplane/opsplane

go 1.26
