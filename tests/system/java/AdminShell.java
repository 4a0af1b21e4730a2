import com.google.gson.Gson;
import java.io.BufferedReader;
import java.io.ByteArrayOutputStream;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import org.apache.pulsar.admin.cli.PulsarAdminTool;

/** Runs many command lines of the official pulsar-admin in one JVM: a JSON list of words a line in, {"ok", "out", "err"} a line out. */
public class AdminShell extends PulsarAdminTool {
    private AdminShell(Properties settings) throws Exception {
        super(settings);
    }

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        Gson gson = new Gson();
        PulsarAdminTool.allowSystemExit = false;
        Properties settings = new Properties();
        settings.setProperty("webServiceUrl", arguments[0]);
        AdminShell shell = new AdminShell(settings);  // one for all lines: closing its HTTP client takes seconds
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            ByteArrayOutputStream out = new ByteArrayOutputStream();
            ByteArrayOutputStream err = new ByteArrayOutputStream();
            System.setOut(new PrintStream(out, true, StandardCharsets.UTF_8));
            System.setErr(new PrintStream(err, true, StandardCharsets.UTF_8));
            boolean ok = false;
            try {
                ok = shell.run(((List<?>) gson.fromJson(line, List.class)).toArray(new String[0]));
            } catch (Throwable error) {
                System.err.println(error);
            }
            answers.println(gson.toJson(Map.of("ok", ok, "out", out.toString(StandardCharsets.UTF_8), "err", err.toString(StandardCharsets.UTF_8))));
            answers.flush();
        }
        System.exit(0);
    }
}
