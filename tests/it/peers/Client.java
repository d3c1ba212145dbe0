// Java's HTTP client: several requests in a row. Arguments: the file of the authority, then for each run the HTTP
// version, the base address and a name. Over http:, HTTP_2 asks for an upgrade to h2c.
import java.io.ByteArrayInputStream;
import java.io.FileInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.security.KeyStore;
import java.security.cert.CertificateFactory;
import java.util.Arrays;
import javax.net.ssl.SSLContext;
import javax.net.ssl.TrustManagerFactory;

public class Client {
    private final HttpClient client;
    private final String base;
    private final String name;

    private Client(HttpClient client, String base, String name) {
        this.client = client;
        this.base = base;
        this.name = name;
    }

    public static void main(String[] arguments) throws Exception {
        SSLContext trusting = trusting(arguments[0]);
        for (int at = 1; at < arguments.length; at += 3) {
            HttpClient client = HttpClient.newBuilder()
                .version(HttpClient.Version.valueOf(arguments[at]))
                .sslContext(trusting)
                .build();
            new Client(client, arguments[at + 1], arguments[at + 2]).run();
        }
        // The client's threads end late.
        System.exit(0);
    }

    private static SSLContext trusting(String file) throws Exception {
        KeyStore store = KeyStore.getInstance(KeyStore.getDefaultType());
        store.load(null, null);
        try (FileInputStream pem = new FileInputStream(file)) {
            store.setCertificateEntry("authority", CertificateFactory.getInstance("X.509").generateCertificate(pem));
        }
        TrustManagerFactory managers = TrustManagerFactory.getInstance(TrustManagerFactory.getDefaultAlgorithm());
        managers.init(store);
        SSLContext context = SSLContext.getInstance("TLS");
        context.init(null, managers.getTrustManagers(), null);
        return context;
    }

    private void run() throws Exception {
        System.out.println("run|" + name);
        byte[] upload = new byte[100_000];
        Arrays.fill(upload, (byte) 'u');
        ask("hello", "GET", BodyPublishers.noBody());
        ask("hello", "HEAD", BodyPublishers.noBody());
        ask("words", "POST", BodyPublishers.ofString("some words"));
        ask("upload", "POST", BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(upload)));
        for (int index = 0; index < 3; index += 1) {
            ask("waits", "GET", BodyPublishers.noBody());
        }
        ask("refuses", "GET", BodyPublishers.noBody());
        ask("refuses", "GET", BodyPublishers.noBody());
        ask("hello", "GET", BodyPublishers.noBody());
    }

    private void ask(String step, String method, BodyPublisher body) throws Exception {
        HttpRequest request = HttpRequest.newBuilder(URI.create(base + "/" + step))
            .method(method, body)
            .header("x-client", name)
            .build();
        HttpResponse<String> response = client.send(request, BodyHandlers.ofString());
        String version = response.version() == HttpClient.Version.HTTP_2 ? "2" : "1.1";
        String wait = response.headers().firstValue("weir-wait-ms").orElse("");
        String retry = response.headers().firstValue("retry-after").orElse("");
        String text = response.statusCode() == 200 ? response.body() : "";
        System.out.println(String.join("|", step, "" + response.statusCode(), version, wait, retry, text));
    }
}
