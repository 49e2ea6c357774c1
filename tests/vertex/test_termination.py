"""SIGTERM as an exception, also while gRPC waits for an answer; in processes of their own, which it must not abort."""

import subprocess
import sys

import pytest

IN_A_CALL = """
import os, signal, time
from concurrent import futures
import grpc
from pipeline.vertex.cloud import raised_on_sigterm

served = []

def slow(request, context):
    if not served:
        os.kill(os.getpid(), signal.SIGTERM)
        while not signal.getitimer(signal.ITIMER_REAL)[0]:  # until the signal was handled and put off
            time.sleep(0.001)
    served.append("answered")
    return b"answer"

server = grpc.server(futures.ThreadPoolExecutor(1))
method = grpc.unary_unary_rpc_method_handler(slow)
server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Slow": method}),))
port = server.add_insecure_port("127.0.0.1:0")
server.start()
ask = grpc.insecure_channel(f"127.0.0.1:{port}").unary_unary("/test/Slow")
try:
    with raised_on_sigterm(ValueError("ended")):
        while True:
            ask(b"", timeout=300)
            time.sleep(0.1)
except ValueError as error:
    print(error, served)
print(ask(b"", timeout=300), signal.getsignal(signal.SIGTERM) is signal.SIG_DFL)
"""
ASLEEP = """
import os, signal, threading, time
from pipeline.vertex.cloud import raised_on_sigterm

try:
    with raised_on_sigterm(ValueError("ended")):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGTERM)).start()
        time.sleep(3600)
except ValueError as error:
    print(error)
"""


@pytest.mark.slow
@pytest.mark.parametrize(("code", "said"), [(IN_A_CALL, "ended ['answered']\nb'answer' True\n"), (ASLEEP, "ended\n")])
def test_the_end_from_outside_is_an_exception_as_soon_as_it_is_safe(code: str, said: str):
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stdout) == (0, said), done.stderr
