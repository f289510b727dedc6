package main

import (
	"flag"
	"io"
	"log"
	"net"
	"time"
)

// forward passes connections on. The API server listens on loopback, where no pod reaches it; this process listens on the
// address of the service `kubernetes`, or, with kube-proxy, on that of its endpoint, so that programs in pods reach the API
// server with their usual configuration.
func forward(args []string) error {
	flags := flag.NewFlagSet("forward", flag.ExitOnError)
	listen := flags.String("listen", "", "ADDRESS:PORT to listen on")
	to := flags.String("to", "", "ADDRESS:PORT to pass connections to")
	flags.Parse(args)
	listener, err := net.Listen("tcp", *listen)
	if err != nil {
		return err
	}
	for {
		client, err := listener.Accept()
		if err != nil {
			log.Print(err)
			// Out of file descriptors: those in use are given back soon.
			time.Sleep(100 * time.Millisecond)
			continue
		}
		go pass(client.(*net.TCPConn), *to)
	}
}

func pass(client *net.TCPConn, to string) {
	defer client.Close()
	upstream, err := net.DialTimeout("tcp", to, 5*time.Second)
	if err != nil {
		log.Print(err)
		return
	}
	server := upstream.(*net.TCPConn)
	defer server.Close()
	done := make(chan struct{})
	go func() {
		io.Copy(server, client)
		server.CloseWrite()
		close(done)
	}()
	io.Copy(client, server)
	client.CloseWrite()
	<-done
}
