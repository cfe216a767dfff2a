package template

import (
	"path/filepath"
	"testing"
)

// root is the repository.
var root = filepath.Join("..", "..", "..")

// read reads the template.
func read(t *testing.T) *Template {
	t.Helper()
	tpl, err := Read(filepath.Join(root, "template.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return tpl
}
