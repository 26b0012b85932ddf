// Makes the JVM use native memory from many sides; every part checks its own results.
import java.io.ByteArrayInputStream;
import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Random;
import java.util.concurrent.Callable;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.regex.Pattern;
import java.util.zip.CRC32;
import java.util.zip.Deflater;
import java.util.zip.GZIPInputStream;
import java.util.zip.GZIPOutputStream;
import java.util.zip.Inflater;
import java.util.zip.ZipEntry;
import java.util.zip.ZipInputStream;
import java.util.zip.ZipOutputStream;

public class Exercise {
  static void check(boolean condition, String what) {
    if (!condition) throw new AssertionError(what);
  }

  static byte[] data(long seed, int size) {
    byte[] bytes = new byte[size];
    Random random = new Random(seed);
    for (int i = 0; i < size; ++i) bytes[i] = (byte) (random.nextInt(8) == 0 ? random.nextInt() : i / 64);
    return bytes;
  }

  static void deflate(long seed) throws Exception {
    byte[] input = data(seed, 50_000 + (int) (seed % 7) * 30_000);
    Deflater deflater = new Deflater((int) (seed % 9) + 1);
    deflater.setInput(input);
    deflater.finish();
    byte[] packed = new byte[input.length * 2];
    int length = deflater.deflate(packed);
    check(deflater.finished(), "the deflater has not finished");
    deflater.end();
    Inflater inflater = new Inflater();
    inflater.setInput(packed, 0, length);
    byte[] output = new byte[input.length];
    check(inflater.inflate(output) == input.length && Arrays.equals(input, output), "inflated data differ");
    inflater.end();
  }

  static void zip(long seed) throws Exception {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (ZipOutputStream zip = new ZipOutputStream(bytes)) {
      for (int i = 0; i < 20; ++i) {
        zip.putNextEntry(new ZipEntry("entry" + i));
        zip.write(data(seed + i, 10_000));
        zip.closeEntry();
      }
    }
    try (ZipInputStream zip = new ZipInputStream(new ByteArrayInputStream(bytes.toByteArray()))) {
      for (int i = 0; i < 20; ++i) {
        check(zip.getNextEntry().getName().equals("entry" + i), "another entry");
        check(Arrays.equals(zip.readAllBytes(), data(seed + i, 10_000)), "unzipped data differ");
      }
    }
    ByteArrayOutputStream packed = new ByteArrayOutputStream();
    try (GZIPOutputStream gzip = new GZIPOutputStream(packed)) {
      gzip.write(data(seed, 100_000));
    }
    try (GZIPInputStream gzip = new GZIPInputStream(new ByteArrayInputStream(packed.toByteArray()))) {
      check(Arrays.equals(gzip.readAllBytes(), data(seed, 100_000)), "gunzipped data differ");
    }
  }

  static void directBuffers(long seed) {
    Random random = new Random(seed);
    List<ByteBuffer> buffers = new ArrayList<>();
    for (int i = 0; i < 400; ++i) {
      int size = 8 + random.nextInt(i % 20 == 0 ? 500_000 : 8_000);
      ByteBuffer buffer = ByteBuffer.allocateDirect(size);
      for (int at = 0; at < size - 8; at += 512) check(buffer.getLong(at) == 0, "a direct buffer is not zero");
      buffer.putInt(0, size).putInt(size - 4, i);
      buffers.add(buffer);
      if (i % 3 == 0) buffers.remove(random.nextInt(buffers.size()));
    }
    for (ByteBuffer buffer : buffers) check(buffer.getInt(0) == buffer.capacity(), "a direct buffer changed");
  }

  static void strings(long seed) {
    Pattern pattern = Pattern.compile("(\\d+)-(\\w+)");
    ConcurrentHashMap<String, Integer> map = new ConcurrentHashMap<>();
    for (int i = 0; i < 20_000; ++i) {
      String text = i + "-word" + (i % 100);
      check(pattern.matcher(text).matches(), "a pattern does not match");
      map.merge(new String(text.getBytes(StandardCharsets.UTF_8), StandardCharsets.UTF_8), 1, Integer::sum);
    }
    check(map.size() == 20_000, "a map lost something");
    CRC32 crc = new CRC32();
    crc.update(data(seed, 200_000));
    check(crc.getValue() != 0, "no checksum");
  }

  static void manyThreads() throws Exception {
    for (int batch = 0; batch < 12; ++batch) {
      List<Thread> threads = new ArrayList<>();
      Throwable[] error = new Throwable[1];
      for (int i = 0; i < 50; ++i) {
        long seed = batch * 50L + i;
        Thread thread = new Thread(() -> {
          try {
            deflate(seed);
          } catch (Throwable caught) {
            error[0] = caught;
          }
        });
        threads.add(thread);
        thread.start();
      }
      for (Thread thread : threads) thread.join();
      if (error[0] != null) throw new AssertionError(error[0]);
    }
  }

  public static void main(String[] arguments) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(8);
    List<Future<Void>> results = new ArrayList<>();
    for (long task = 0; task < 60; ++task) {
      long seed = task;
      Callable<Void> work = () -> {
        deflate(seed);
        zip(seed);
        directBuffers(seed);
        strings(seed);
        return null;
      };
      results.add(pool.submit(work));
    }
    for (Future<Void> result : results) result.get();
    pool.shutdown();
    manyThreads();
    System.gc();
    System.out.println("all checks passed");
  }
}
