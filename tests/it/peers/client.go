// Go's HTTP client: several requests on one connection. Arguments: the file of the authority, then for each run the base address
// and a name.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"os"
	"strings"
)

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	pem, err := os.ReadFile(os.Args[1])
	check(err)
	trusted := x509.NewCertPool()
	trusted.AppendCertsFromPEM(pem)
	for at := 2; at < len(os.Args); at += 2 {
		run(trusted, os.Args[at], os.Args[at+1])
	}
}

func run(trusted *x509.CertPool, base, name string) {
	fmt.Println("run|" + name)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: trusted}, ForceAttemptHTTP2: true}
	defer transport.CloseIdleConnections()
	asked := 0
	ask := func(step, method string, body io.Reader) {
		request, err := http.NewRequest(method, base+"/"+step, body)
		check(err)
		request.Header.Set("x-client", name)
		trace := &httptrace.ClientTrace{GotConn: func(connection httptrace.GotConnInfo) {
			if asked > 0 && !connection.Reused {
				check(fmt.Errorf("another connection for %s", step))
			}
		}}
		response, err := transport.RoundTrip(request.WithContext(httptrace.WithClientTrace(request.Context(), trace)))
		check(err)
		asked++
		text, err := io.ReadAll(response.Body)
		check(err)
		check(response.Body.Close())
		if response.StatusCode != 200 {
			text = nil
		}
		version := strings.TrimSuffix(strings.TrimPrefix(response.Proto, "HTTP/"), ".0")
		fmt.Printf("%s|%d|%s|%s|%s|%s\n", step, response.StatusCode, version,
			response.Header.Get("weir-wait-ms"), response.Header.Get("retry-after"), text)
	}
	ask("hello", "GET", nil)
	ask("hello", "HEAD", nil)
	ask("words", "POST", strings.NewReader("some words"))
	// A reader without a known length.
	ask("upload", "POST", io.MultiReader(bytes.NewReader(bytes.Repeat([]byte("u"), 100_000))))
	for index := 0; index < 3; index++ {
		ask("waits", "GET", nil)
	}
	ask("refuses", "GET", nil)
	ask("refuses", "GET", nil)
	ask("hello", "GET", nil)
}
