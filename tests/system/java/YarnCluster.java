import java.io.OutputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.hadoop.yarn.conf.YarnConfiguration;
import org.apache.hadoop.yarn.server.MiniYARNCluster;

/** A resource manager and two node managers, until stdin ends; their yarn-site.xml goes to the folder that is named. Containers are real processes. */
public class YarnCluster {
    public static void main(String[] args) throws Exception {
        YarnConfiguration conf = new YarnConfiguration();
        conf.set("fs.defaultFS", "file:///");
        conf.set("yarn.scheduler.capacity.root.queues", "default");
        conf.set("yarn.scheduler.capacity.root.default.capacity", "100");
        conf.set("yarn.scheduler.capacity.maximum-am-resource-percent", "1");
        conf.setInt("yarn.scheduler.minimum-allocation-mb", 64);
        conf.setInt("yarn.nodemanager.resource.memory-mb", 4096);
        conf.setBoolean("yarn.nodemanager.vmem-check-enabled", false);
        // a disk of which nine tenths are taken would leave nodes without folders: looked at once at their start, checker or not
        conf.setBoolean("yarn.nodemanager.disk-health-checker.enable", false);
        conf.setFloat("yarn.nodemanager.disk-health-checker.max-disk-utilization-per-disk-percentage", 100);
        conf.setInt("yarn.nodemanager.delete.debug-delay-sec", 3600); // containers' output stays, for who looks why one failed
        MiniYARNCluster cluster = new MiniYARNCluster("yarn", 2, 1, 1);
        cluster.init(conf);
        cluster.start();
        try (OutputStream out = Files.newOutputStream(Path.of(args[0], "yarn-site.xml"))) {
            cluster.getConfig().writeXml(out);
        }
        System.out.println("ready");
        while (System.in.read() >= 0) {}
        cluster.stop();
        System.exit(0);
    }
}
