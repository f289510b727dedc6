// What the rig needs besides Kubernetes: images without a registry or a builder, and the API server's address in pods.
package main

import (
	"fmt"
	"os"
)

func main() {
	commands := map[string]func([]string) error{"image": image, "forward": forward}
	if len(os.Args) < 2 || commands[os.Args[1]] == nil {
		fmt.Fprintln(os.Stderr, "usage: tool image|forward [flags]")
		os.Exit(64)
	}
	if err := commands[os.Args[1]](os.Args[2:]); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", os.Args[1], err)
		os.Exit(1)
	}
}
