package main

import (
	"context"
	"errors"
)

func (r *runner) demo(ctx context.Context, addr, data string) error {
	return errors.New("not there yet")
}
