#!/usr/bin/perl
# User agents of Net::SIP that register at a server and call each other through its proxy. Each case prints one line:
# `ok NAME: DETAIL` or `FAIL NAME: REASON`.
use strict;
use warnings;
use Net::SIP ':all';
use Net::SIP::Util 'INETSOCK';
use IO::Handle;

my ($port, $transport, $password) = @ARGV;
my $domain = 'example.org';
# Net::SIP puts a Request-URI with parameters into angle brackets, which RFC 3261 §7.1 forbids. So the transport is that of the leg.
my $server = "sip:127.0.0.1:$port";
my $seconds = 15;
STDOUT->autoflush(1);

sub user_agent {
    my ($user) = @_;
    # No port of SIP: a Contact at the host of the domain with the default port would be the user's own address of record.
    my $socket = INETSOCK(
        LocalAddr => '127.0.0.1',
        Proto => $transport,
        $transport eq 'tcp' ? (Listen => 10, Reuse => 1) : (),
    ) or die $!;
    return Simple->new(
        from => "sip:$user\@$domain",
        domain => $domain,
        registrar => $server,
        outgoing_proxy => $server,
        auth => [$user, $password],
        leg => Net::SIP::Leg->new(sock => $socket),
    );
}

# The callees: what one of them does follows from its name.
sub callees {
    my ($ready, @names) = @_;
    my @all;
    my $loop = Net::SIP::Dispatcher::Eventloop->new;
    for my $name (@names) {
        my $ua = user_agent($name);
        $ua->register(expires => 600) or die "$name: " . $ua->error;
        my $call;
        $ua->listen(
            cb_create => sub { $call = shift; 1 },
            cb_invite => sub {
                my (undef, $request) = @_;
                return $request->create_response('486', 'Busy Here') if $name eq 'busy';
                return $request->create_response('180', 'Ringing') if $name eq 'ringing';
                return;
            },
            cb_established => sub {
                return if $name ne 'short';
                # It hangs up soon.
                $ua->add_timer(1, sub { $call->bye });
            },
        );
        push @all, $ua;
    }
    print {$ready} "ready\n";
    # Each user agent has an event loop of its own.
    while (1) {
        $_->loop(0.05) for @all;
    }
}

sub case {
    my ($name, $run) = @_;
    my $detail = eval {
        local $SIG{ALRM} = sub { die "nothing came within $seconds s\n" };
        alarm $seconds;
        my $detail = $run->();
        alarm 0;
        $detail;
    };
    alarm 0;
    chomp(my $error = $@ || 'no result');
    print defined $detail ? "ok $name over $transport: $detail\n" : "FAIL $name over $transport: $error\n";
}

pipe(my $read, my $write) or die $!;
$write->autoflush(1);
my $child = fork();
die $! unless defined $child;
if ($child == 0) {
    close $read;
    eval { callees($write, qw(bob busy ringing short)) };
    print {$write} "failed: $@";
    exit 1;
}
close $write;
END { kill 9, $child if $child }

my $alice = user_agent('alice');

case('registration', sub {
    my $expires = $alice->register(expires => 600);
    die 'alice: ' . $alice->error . "\n" unless $expires;
    chomp(my $line = <$read> // 'nothing');
    die "$line\n" if $line ne 'ready';
    return "$expires s";
});

case('wrong password', sub {
    my $mallory = user_agent('alice');
    my $expires = $mallory->register(auth => ['alice', 'wrong'], expires => 600);
    die "it was accepted\n" if $expires;
    return $mallory->error;
});

case('call', sub {
    my $call = $alice->invite("sip:bob\@$domain");
    die $alice->error . "\n" if !$call || $call->error;
    my $stop;
    $call->bye(cb_final => \$stop);
    $alice->loop($seconds, \$stop);
    die "the BYE has no response\n" unless $stop;
    return 'established and ended';
});

case('call that the callee ends', sub {
    my $ended;
    my $call = $alice->invite("sip:short\@$domain", recv_bye => \$ended);
    die $alice->error . "\n" if !$call || $call->error;
    $alice->loop($seconds, \$ended);
    die "no BYE came\n" unless $ended;
    return 'the BYE came';
});

case('busy callee', sub {
    my $code;
    my $done;
    my $call = $alice->invite("sip:busy\@$domain", cb_final => sub {
        my ($status, undef, %info) = @_;
        ($code, $done) = ($info{code}, 1);
    });
    $alice->loop($seconds, \$done);
    die 'not 486 but ' . ($code // 'nothing') . "\n" unless $code && $code == 486;
    return $code;
});

case('cancelled call', sub {
    my $code;
    my $call = $alice->invite(
        "sip:ringing\@$domain",
        ring_time => 2,
        cb_noanswer => sub {
            my (undef, undef, %info) = @_;
            $code = $info{code};
        },
    );
    die 'the CANCEL has no 200 but ' . ($code // 'nothing') . "\n" unless $code && $code == 200;
    return "$code to the CANCEL";
});

case('unknown callee', sub {
    my $code;
    my $done;
    my $call = $alice->invite("sip:nobody\@$domain", cb_final => sub {
        my ($status, undef, %info) = @_;
        ($code, $done) = ($info{code}, 1);
    });
    $alice->loop($seconds, \$done);
    die 'not 404 but ' . ($code // 'nothing') . "\n" unless $code && $code == 404;
    return $code;
});
