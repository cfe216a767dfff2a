// Command openapi prints the OpenAPI document of the API, for infra/docs.
package main

import (
	"fmt"
	"os"

	"github.com/opsplane/opsplane/shared/httpapi"
)

func main() {
	b, err := httpapi.OpenAPI()
	if err == nil {
		_, err = os.Stdout.Write(b)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "openapi:", err)
		os.Exit(1)
	}
}
