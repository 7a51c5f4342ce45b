"""A phone made of PJSIP that does what it reads, a command a line, and prints what happens, an event a line.

| command | event |
|---|---|
| | `registered CODE` |
| `dial URI` | `ringing`, `established`, `ended CODE` |
| | `incoming` |
| `answer`, `refuse CODE`, `hangup` | |
| `hold`, `resume` | `holding` and `active`; at the other side `held` and `active` |
| `transfer URI` | `transferred CODE`; at the other side `refer` |
| `listen` | `heard` when a second of audio has come since |
| `end` | `idle` when there is no call any more |
| `network` | its addresses have changed: `registered CODE`, then `active` after a second INVITE |
"""

import argparse
import select
import sys

import pjsua2 as pj

# A second of audio in packets of 20 ms.
SECOND = 50

# PJSUA_CONTACT_REWRITE_UNREGISTER, which the module has not.
CONTACT_REWRITE_UNREGISTER = 1


def say(*words):
    print(*words, flush=True)


class Call(pj.Call):
    def __init__(self, phone, number=pj.PJSUA_INVALID_ID):
        super().__init__(phone, number)
        self.phone = phone
        # How many packets had come when it began to listen.
        self.before = None

    def onCallState(self, prm):
        info = self.getInfo()
        if info.state == pj.PJSIP_INV_STATE_EARLY:
            say("ringing")
        elif info.state == pj.PJSIP_INV_STATE_CONFIRMED:
            say("established")
        elif info.state == pj.PJSIP_INV_STATE_DISCONNECTED:
            say("ended", info.lastStatusCode)
            self.phone.calls.remove(self)

    def onCallMediaState(self, prm):
        # It owns the list.
        info = self.getInfo()
        for index, media in enumerate(info.media):
            if media.status == pj.PJSUA_CALL_MEDIA_ACTIVE:
                # Without a source there is silence, which is not sent.
                self.phone.tone.startTransmit(self.getAudioMedia(index))
                say("active")
            elif media.status == pj.PJSUA_CALL_MEDIA_REMOTE_HOLD:
                say("held")
            elif media.status == pj.PJSUA_CALL_MEDIA_LOCAL_HOLD:
                say("holding")

    def onCallTransferRequest(self, prm):
        say("refer")
        prm.newCall = self.phone.add(Call(self.phone))

    def onCallTransferStatus(self, prm):
        if prm.finalNotify:
            say("transferred", prm.statusCode)

    def packets(self):
        return self.getStreamStat(0).rtcp.rxStat.pkt

    def listen(self):
        self.before = self.packets()

    def look(self):
        if self.before is None:
            return
        # A new media description can begin a new stream, which counts from zero.
        self.before = min(self.before, self.packets())
        if self.packets() >= self.before + SECOND:
            self.before = None
            say("heard")


class Phone(pj.Account):
    def __init__(self, endpoint):
        super().__init__()
        self.endpoint = endpoint
        # The latest one is the one of the commands.
        self.calls = []
        # It says so when there is no call.
        self.ends = False
        self.tone = pj.ToneGenerator()
        self.tone.createToneGenerator()
        tone = pj.ToneDesc()
        tone.freq1, tone.on_msec, tone.off_msec = 440, 1000, 0
        tones = pj.ToneDescVector()
        tones.append(tone)
        self.tone.play(tones, True)

    def add(self, call):
        self.calls.append(call)
        return call

    def onRegState(self, prm):
        # Not the end of an earlier binding.
        if prm.code // 100 != 2 or self.getInfo().regIsActive:
            say("registered", prm.code)

    def onIncomingCall(self, prm):
        call = self.add(Call(self, prm.callId))
        ringing = pj.CallOpParam()
        ringing.statusCode = pj.PJSIP_SC_RINGING
        call.answer(ringing)
        say("incoming")

    def do(self, command, argument):
        prm = pj.CallOpParam(True)
        if command == "dial":
            self.add(Call(self)).makeCall(argument, prm)
            return
        if command == "end":
            self.endpoint.hangupAllCalls()
            self.ends = True
            return
        if command == "network":
            self.endpoint.handleIpChange(pj.IpChangeParam())
            return
        if not self.calls:
            return
        call = self.calls[-1]
        if command in ("answer", "refuse"):
            prm.statusCode = int(argument or pj.PJSIP_SC_OK)
            call.answer(prm)
        elif command == "hangup":
            call.hangup(pj.CallOpParam())
        elif command == "hold":
            call.setHold(prm)
        elif command == "resume":
            prm.opt.flag = pj.PJSUA_CALL_UNHOLD
            call.reinvite(prm)
        elif command == "transfer":
            call.xfer(argument, pj.CallOpParam())
        elif command == "listen":
            call.listen()
        else:
            raise ValueError(f"no such command: {command}")


def start(log, transport):
    endpoint = pj.Endpoint()
    endpoint.libCreate()
    config = pj.EpConfig()
    config.logConfig.consoleLevel = 0
    config.logConfig.level = 5
    config.logConfig.filename = log
    # Events come in libHandleEvents() alone.
    config.uaConfig.threadCnt = 0
    config.uaConfig.mainThreadOnly = True
    # Silence is sent, too.
    config.medConfig.noVad = True
    endpoint.libInit(config)
    endpoint.audDevManager().setNullDev()
    local = pj.TransportConfig()
    kinds = {"udp": pj.PJSIP_TRANSPORT_UDP, "tcp": pj.PJSIP_TRANSPORT_TCP}
    endpoint.transportCreate(kinds[transport], local)
    # All phones have it. With a choice, PJSIP sends another INVITE after the answer, which meets that of a hold (491).
    for codec in endpoint.codecEnum2():
        endpoint.codecSetPriority(codec.codecId, 255 if codec.codecId.startswith("PCMU/") else 0)
    endpoint.libStart()
    return endpoint


def register(endpoint, user, password, server, transport):
    config = pj.AccountConfig()
    config.idUri = f"sip:{user}@example.org"
    config.regConfig.registrarUri = "sip:example.org"
    config.sipConfig.proxies.append(f"sip:{server};transport={transport};lr")
    # With a new address it removes the binding of the old one.
    config.natConfig.contactRewriteMethod = CONTACT_REWRITE_UNREGISTER
    config.sipConfig.authCreds.append(pj.AuthCredInfo("digest", "*", user, 0, password))
    phone = Phone(endpoint)
    phone.create(config)
    return phone


def main():
    parser = argparse.ArgumentParser()
    for name in ("--user", "--password", "--server", "--transport", "--log"):
        parser.add_argument(name, required=True)
    arguments = parser.parse_args()
    endpoint = start(arguments.log, arguments.transport)
    account = (arguments.user, arguments.password, arguments.server, arguments.transport)
    phone = register(endpoint, *account)
    while True:
        endpoint.libHandleEvents(20)
        if phone.ends and not phone.calls:
            phone.ends = False
            say("idle")
        for call in list(phone.calls):
            if call.isActive() and call.hasMedia():
                call.look()
        readable, _, _ = select.select([sys.stdin], [], [], 0)
        if readable:
            line = sys.stdin.readline()
            if not line:
                break
            command, _, argument = line.strip().partition(" ")
            phone.do(command, argument)
    endpoint.libDestroy()


main()
