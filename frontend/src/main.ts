import { mount } from 'svelte'

import { Client, exportedTrace, ExportedFiles, Server } from './api'
import App from './App.svelte'
import { render } from './notebook/widget'
import './page.css'
import { Studio } from './studio.svelte'

async function startPage(target: HTMLElement): Promise<void> {
  const exported = exportedTrace()
  const source = exported ? new ExportedFiles(() => studio.message('not_exported')) : new Server()
  const studio: Studio = new Studio(new Client(source), exported?.trace ?? null)
  await studio.loadLanguage()
  mount(App, { target, props: { studio } })
  await studio.start()
}

const target = document.getElementById('studio')
if (target) void startPage(target)
else Object.assign(globalThis, { rheoscopeRender: render }) // in a notebook, which calls it for every widget
