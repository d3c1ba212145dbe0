// Uploads 30 MB to a URL as often as told, and prints how many of weir's refusals were read. Over HTTP/2 where the server offers it.
package main

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
)

func main() {
	url := os.Args[1]
	count, _ := strconv.Atoi(os.Args[2])
	roots := x509.NewCertPool()
	pem, _ := os.ReadFile(os.Getenv("SSL_CERT_FILE"))
	roots.AppendCertsFromPEM(pem)
	http2 := os.Getenv("CLIENTS_HTTP2") != ""
	client := &http.Client{Transport: &http.Transport{
		ForceAttemptHTTP2: http2, TLSClientConfig: &tls.Config{RootCAs: roots},
	}}
	body := make([]byte, 30_000_000)
	upload := func() bool {
		answer, err := client.Post(url, "application/octet-stream", bytes.NewReader(body))
		if err != nil {
			return false
		}
		defer answer.Body.Close()
		text, err := io.ReadAll(answer.Body)
		is := err == nil && answer.StatusCode == 429 && strings.Contains(string(text), "weir, the proxy in front of this API")
		return is && (answer.ProtoMajor == 2) == http2
	}
	// The first takes the only permit.
	upload()
	read := 0
	for i := 0; i < count; i++ {
		if upload() {
			read++
		}
	}
	fmt.Println(read)
}
